"""Measures from distances to nearest neighbours: intrinsic dimension, by several estimators, and entropy."""
