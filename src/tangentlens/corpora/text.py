"""Sources of text: the documentation that comes with Python, or a file."""

from pathlib import Path
from pydoc_data.topics import topics

from tangentlens.errors import InputError


def builtin_text() -> str:
    """Return English text that comes with Python: its own documentation, about 465,000 characters.

    >>> len(builtin_text()) > 400_000
    True
    """
    return "\n\n".join(topics[name] for name in sorted(topics))


def no_text_file(path: Path, error: OSError) -> InputError:
    """Return the error to raise for a text file that cannot be read.

    Args:
        path: The file.
        error: The reason, as the operating system gives it.
    """
    return InputError(f"{path} must be a text file, but: {error.strerror}; check the path")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; raise an error if it has none."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise no_text_file(path, error) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} must be UTF-8 text, but is not ({error}); convert it first") from error
    if not text.strip():
        raise InputError(f"{path} must hold text, but is empty; name another file")
    return text
