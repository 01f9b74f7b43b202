"""The run directory: a JSON manifest, a table of records in Parquet parts, tensors in safetensors. No pickle.

Every file appears whole or not at all, under a name that says what it holds: writing the same thing again replaces it,
so nothing is half-written and nothing is doubled. Models and measures may not enter here.
"""
