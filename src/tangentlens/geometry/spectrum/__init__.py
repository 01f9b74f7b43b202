"""Measures of how rows spread over directions: anisotropy, cosines, effective ranks, isotropy."""
