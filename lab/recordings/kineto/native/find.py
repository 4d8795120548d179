"""The scanner's library: the one of a platform wheel, else compiled once by this machine's C compiler."""

from __future__ import annotations

import ctypes
from pathlib import Path

from lab.native import Library


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    state, count, place = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
    library.scan_new.restype, library.scan_new.argtypes = state, []
    library.scan_free.restype, library.scan_free.argtypes = None, [state]
    library.scan_columns.restype, library.scan_columns.argtypes = count, []
    library.scan_table.restype, library.scan_table.argtypes = count, [count, place]
    library.scan.restype = count
    library.scan.argtypes = [state, ctypes.c_char_p, count, place, place, place]
    library.scan_distinct.restype = count
    library.scan_distinct.argtypes = [
        state,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_void_p),
    ]
    return library


LIBRARY = Library(Path(__file__).with_name("scan.c"), _typed)
library, library_state = LIBRARY.get, LIBRARY.state
