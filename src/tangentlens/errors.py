"""The one error that means: what you gave cannot be used. Everything else that is raised is a bug."""


class InputError(ValueError):
    """What must hold, what came instead, and what to do about it, in one line."""
