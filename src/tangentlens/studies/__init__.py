"""The experiments, declared as data: what to train, on what, and when to look."""
