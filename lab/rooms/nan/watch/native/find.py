"""The libraries of this folder: those of a platform wheel, else compiled once by this machine's compiler."""

from __future__ import annotations

import ctypes
from pathlib import Path

from lab.core.native import Library


def _typed(found: ctypes.CDLL) -> ctypes.CDLL:
    size, memory = ctypes.c_int64, ctypes.c_char_p
    found.count_kinds.restype, found.count_kinds.argtypes = size, []
    found.count_tensors.restype = size
    found.count_tensors.argtypes = [size, memory, memory, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    return found


LIBRARY = Library(Path(__file__).with_name("counts.c"), _typed)
library = LIBRARY.get
# Its functions take and give objects of Python: see `passing`.
PASSING = Library(Path(__file__).with_name("passing.c"), lambda found: found)
passing_library = PASSING.get
CALLS = Library(Path(__file__).with_name("calls.c"), lambda found: found)
calls_library = CALLS.get


def library_state() -> str:
    """Which form is in use, and why, for `lab doctor`."""
    counts, passing, calls = LIBRARY.state(), PASSING.state(), CALLS.state()
    return counts if counts == passing == calls else f"counts {counts}; hooks {passing}; calls {calls}"
