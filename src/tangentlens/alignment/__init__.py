"""How much of the gradients lies in a proxy: shares, chance levels, intervals, frequency bins, verdicts.

The functions take tensors and subspaces. Models and files may not enter here.
"""
