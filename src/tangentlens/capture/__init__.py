"""What flows inside a model: which tensors are a site, and how their rows are taken from a live training step.

Rows come out; what is measured on them may not enter here.
"""
