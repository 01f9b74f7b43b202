"""Proxies against gradients: shares, chance levels, intervals, frequency bins, verdicts.

Takes tensors and subspaces; models and files may not enter here.
"""
