"""A C file of lab as a library: the one of a platform wheel, else compiled once by this machine's compiler.

Beside every such file stands a plain form in Python that gives the same answers: it is used where there is no
compiler, and where LAB_READER is `plain`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from lab.core import compiled
from lab.errors import LabError

C = compiled.Compiling(
    language="C",
    variable="CC",
    names=("cc", "gcc", "clang"),
    flags=("-std=c11", "-O2", "-shared", "-fPIC"),
    instead="the plain reader needs no compiler (LAB_READER=plain)",
    portable=True,
)


def find(source: Path, typed: Callable[[ctypes.CDLL], ctypes.CDLL]) -> tuple[ctypes.CDLL | None, str]:
    """The library of `source`, with the types that `typed` gives its functions; and where it is from, or why
    there is none."""
    why = "this lab came without a compiled one"
    if compiled.PACKAGED.is_dir():
        why = "the one that came with this lab is for another machine or version"
    if place := C.packaged(source):
        try:
            return typed(C.loaded(place)), "native, from the wheel"
        except LabError as error:
            why = f"of the wheel's, {error.what.splitlines()[0]}"
    try:
        return typed(C.built(source)), f"native, compiled here ({why})"
    except LabError as error:
        return None, f"plain: {error.what.splitlines()[0]} ({why})"
