"""Programs for type checkers, which are not to be imported."""

collect_ignore = ["user.py", "wrong.py"]
