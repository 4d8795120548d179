"""A C file of lab as a library: the one of a platform wheel, else compiled once by this machine's compiler.

Beside every such file stands a plain form in Python that gives the same answers: it is used where there is no
compiler, and where LAB_READER is `plain`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from lab.core import compiled
from lab.errors import LabError

READER = "LAB_READER"  # "plain" leaves C out
C = compiled.Compiling(
    language="C",
    variable="CC",
    names=("cc", "gcc", "clang"),
    flags=("-std=c11", "-O2", "-shared", "-fPIC"),
    instead="the plain reader needs no compiler (LAB_READER=plain)",
    portable=True,
)


class Library:
    """The library of `source`, found on first use; `typed` gives its functions their types."""

    def __init__(self, source: Path, typed: Callable[[ctypes.CDLL], ctypes.CDLL]) -> None:
        self.source, self._typed = source, typed

    def get(self) -> ctypes.CDLL | None:
        """Return the library; None without one, and where $LAB_READER asks for the plain form."""
        return None if _wants_plain() else self._search[0]

    def state(self) -> str:
        """Say which form is in use, and the reason, for `lab doctor`."""
        return f"plain, as {READER} asks" if _wants_plain() else self._search[1]

    @cached_property
    def _search(self) -> tuple[ctypes.CDLL | None, str]:
        """The library, and its origin or the reason for its absence."""
        reason = "this lab came without a compiled one"
        if compiled.PACKAGED.is_dir():
            reason = "the one that came with this lab is for another machine or version"
        if path := C.packaged(self.source):
            try:
                return self._typed(C.loaded(path)), "native, from the wheel"
            except LabError as error:
                reason = f"of the wheel's, {error.problem.splitlines()[0]}"
        try:
            return self._typed(C.built(self.source)), f"native, compiled here ({reason})"
        except LabError as error:
            return None, f"plain: {error.problem.splitlines()[0]} ({reason})"


def _wants_plain() -> bool:
    return os.environ.get(READER) == "plain"
