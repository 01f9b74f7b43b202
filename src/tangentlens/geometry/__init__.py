"""Measures of a cloud of rows: moments, subspaces, anisotropy, dimension, curvature. Tensors in, numbers out.

Every function takes rows `(n_rows, n_features)`, or the `Moments` of such rows where those suffice. Nothing here knows
of models, files or text.
"""
