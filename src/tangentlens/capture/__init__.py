"""What flows inside a model: which tensors make up a site, and how their rows are captured in a live training step.

This room returns rows. What is measured on them may not enter here.
"""
