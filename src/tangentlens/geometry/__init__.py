"""Tensors in, numbers out: moments, subspaces, anisotropy, dimension.

Every function takes rows `(n_rows, n_features)`, or the `Moments` of such rows where those suffice. Models, files and
text may not enter here.
"""
