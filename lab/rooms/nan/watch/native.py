"""The library of counts.c: that of a platform wheel, else compiled once by this machine's compiler."""

from __future__ import annotations

import ctypes
from pathlib import Path

from lab.native import Library


def _typed(loaded: ctypes.CDLL) -> ctypes.CDLL:
    size, memory = ctypes.c_int64, ctypes.c_char_p
    loaded.count_kinds.restype, loaded.count_kinds.argtypes = size, []
    loaded.count_tensors.restype = size
    loaded.count_tensors.argtypes = [size, memory, memory, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    return loaded


LIBRARY = Library(Path(__file__).with_name("counts.c"), _typed)
library, library_state = LIBRARY.get, LIBRARY.state
