"""The command line as `python -m tangentlens`, for where the command itself is not on the path."""

from tangentlens.cli import main

if __name__ == "__main__":
    main()
