"""The library of lines.c: the one of a platform wheel, else compiled once by this machine's C compiler."""

from __future__ import annotations

import ctypes
from pathlib import Path

from lab.native import Library


class Word(ctypes.Structure):
    _fields_ = (("text", ctypes.c_char * 32), ("length", ctypes.c_int64))


class Words(ctypes.Structure):
    _fields_ = (
        ("kinds", ctypes.POINTER(Word)),
        ("labels", ctypes.POINTER(Word)),
        ("num_kinds", ctypes.c_int64),
        ("num_labels", ctypes.c_int64),
        ("turns", ctypes.c_uint64 * 4),
    )


def _typed(found: ctypes.CDLL) -> ctypes.CDLL:
    state, size, numbers = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
    found.lines_new.restype, found.lines_new.argtypes = state, [ctypes.c_uint64]
    found.lines_free.restype, found.lines_free.argtypes = None, [state]
    found.lines_clear.restype, found.lines_clear.argtypes = None, [state]
    found.lines_count.restype, found.lines_count.argtypes = size, [state, ctypes.c_char_p, size]
    found.lines_news.restype, found.lines_news.argtypes = size, [state, ctypes.POINTER(numbers)]
    found.lines_known.restype, found.lines_known.argtypes = size, [state]
    found.lines_counts.restype, found.lines_counts.argtypes = None, [state, numbers, size]
    found.usual_columns.restype, found.usual_columns.argtypes = size, []
    found.usual_lines.restype = size
    found.usual_lines.argtypes = [
        ctypes.POINTER(Words),
        ctypes.c_char_p,
        size,
        ctypes.c_void_p,
        ctypes.c_void_p,
        size,
        ctypes.POINTER(size),
    ]
    found.lines_forget.restype, found.lines_forget.argtypes = None, [state, size]
    return found


LIBRARY = Library(Path(__file__).with_name("lines.c"), _typed)
library, library_state = LIBRARY.get, LIBRARY.state
