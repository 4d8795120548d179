"""The library of counts.c: that of a platform wheel, else compiled once by this machine's compiler."""

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
library, library_state = LIBRARY.get, LIBRARY.state
