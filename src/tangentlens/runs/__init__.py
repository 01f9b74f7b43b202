"""The run directory, in a folder or at a URL: a JSON manifest, Parquet parts of records, tensors. No pickle.

Every file appears whole or not at all, under a name that says what it holds: writing the same thing again replaces it,
so nothing is half-written and nothing is doubled. The vocabulary names what the rooms above measure; models,
and measuring itself, may not enter here.
"""
