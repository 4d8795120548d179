"""The scanner's library: the one of a platform wheel, else compiled once by this machine's C compiler."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from lab.core.compiled import PACKAGED, Compiling
from lab.errors import LabError

SOURCE = Path(__file__).with_name("scan.c")
READER = "LAB_READER"  # "plain" leaves the scanner out
C = Compiling(
    language="C",
    variable="CC",
    names=("cc", "gcc", "clang"),
    flags=("-std=c11", "-O2", "-shared", "-fPIC"),
    instead="the plain reader needs no compiler (LAB_READER=plain)",
    portable=True,
)


def library() -> ctypes.CDLL | None:
    """The library; None without one, and where $LAB_READER asks for the plain reader."""
    return None if os.environ.get(READER) == "plain" else _found()[0]


def library_state() -> str:
    """Which reader is in use, and why, for `lab doctor`."""
    if os.environ.get(READER) == "plain":
        return f"plain, as {READER} asks"
    return _found()[1]


@cache
def _found() -> tuple[ctypes.CDLL | None, str]:
    why = "this lab came without a compiled one"
    if PACKAGED.is_dir():
        why = "the one that came with this lab is for another machine or version"
    if place := C.packaged(SOURCE):
        try:
            return _typed(C.loaded(place)), "native, from the wheel"
        except LabError as error:
            why = f"of the wheel's, {error.what.splitlines()[0]}"
    try:
        return _typed(C.built(SOURCE)), f"native, compiled here ({why})"
    except LabError as error:
        return None, f"plain: {error.what.splitlines()[0]} ({why})"


def _typed(found: ctypes.CDLL) -> ctypes.CDLL:
    state, count, place = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
    found.scan_new.restype, found.scan_new.argtypes = state, []
    found.scan_free.restype, found.scan_free.argtypes = None, [state]
    found.scan_columns.restype, found.scan_columns.argtypes = count, []
    found.scan.restype, found.scan.argtypes = count, [state, ctypes.c_char_p, count, place, count]
    found.scan_distinct.restype = count
    found.scan_distinct.argtypes = [
        state,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_void_p),
    ]
    return found
