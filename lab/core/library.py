"""A C file of lab as a library that is looked for when it is first needed, and the wish to do without it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

READER = "LAB_READER"  # "plain" leaves C out


def wants_plain() -> bool:
    return os.environ.get(READER) == "plain"


class Library:
    """`typed` gives the functions of `source` their types."""

    def __init__(self, source: Path, typed: Callable[[ctypes.CDLL], ctypes.CDLL]) -> None:
        self.source, self._typed = source, typed

    def get(self) -> ctypes.CDLL | None:
        """The library; None without one, and where $LAB_READER asks for the plain form."""
        return None if wants_plain() else self.found[0]

    def state(self) -> str:
        """Which form is in use, and why, for `lab doctor`."""
        return f"plain, as {READER} asks" if wants_plain() else self.found[1]

    @cached_property
    def found(self) -> tuple[ctypes.CDLL | None, str]:
        from lab.core.native import find  # it brings subprocess along, which a small log does without

        return find(self.source, self._typed)
