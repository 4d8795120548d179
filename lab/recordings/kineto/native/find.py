"""The scanner's library: the one of a platform wheel, else compiled once by this machine's C compiler."""

from __future__ import annotations

import ctypes
from pathlib import Path

from lab.core.native import Library


def _typed(found: ctypes.CDLL) -> ctypes.CDLL:
    state, count, place = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
    found.scan_new.restype, found.scan_new.argtypes = state, []
    found.scan_free.restype, found.scan_free.argtypes = None, [state]
    found.scan_columns.restype, found.scan_columns.argtypes = count, []
    found.scan_table.restype, found.scan_table.argtypes = count, [count, place]
    found.scan.restype = count
    found.scan.argtypes = [state, ctypes.c_char_p, count, place, place, place]
    found.scan_distinct.restype = count
    found.scan_distinct.argtypes = [
        state,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_void_p),
    ]
    return found


LIBRARY = Library(Path(__file__).with_name("scan.c"), _typed)
library, library_state = LIBRARY.get, LIBRARY.state
