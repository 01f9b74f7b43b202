"""Measures of how the variance of rows spreads over directions: anisotropy, cosines, effective ranks, isotropy."""
