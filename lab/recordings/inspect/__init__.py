"""What lies in a file or folder: which recording, whose, how whole, and which commands read it."""

from lab.recordings.inspect.rows import Row, inspect_all

__all__ = ["Row", "inspect_all"]
