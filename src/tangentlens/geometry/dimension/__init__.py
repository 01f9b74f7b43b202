"""Measures from distances to neighbours: intrinsic dimension, by several estimators, and entropy at that dimension."""
