"""The library of counts.c: the one of a platform wheel, else compiled once by this machine's C compiler."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("counts.c")


def library() -> ctypes.CDLL | None:
    """The library; None without one, and where $LAB_READER asks for the plain form."""
    from lab.core.native import wants_plain

    return None if wants_plain() else _found()[0]


def library_state() -> str:
    """Which form counts, and why."""
    from lab.core.native import state_of

    return state_of(_found)


@cache
def _found() -> tuple[ctypes.CDLL | None, str]:
    from lab.core.native import find

    return find(SOURCE, _typed)


def _typed(found: ctypes.CDLL) -> ctypes.CDLL:
    size, memory = ctypes.c_int64, ctypes.c_char_p
    found.count_kinds.restype, found.count_kinds.argtypes = size, []
    found.count_tensors.restype = size
    found.count_tensors.argtypes = [size, memory, memory, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    return found
