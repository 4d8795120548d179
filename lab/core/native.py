"""A C file of lab as a library: the one of a platform wheel, else compiled once by this machine's compiler.

Beside every such file stands a plain form in Python that gives the same answers: it is used where there is no
compiler, and where LAB_READER is `plain`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from lab.core.compiled import Compiling
from lab.errors import LabError

READER = "LAB_READER"  # "plain" leaves C out
C = Compiling(
    language="C",
    variable="CC",
    names=("cc", "gcc", "clang"),
    flags=("-std=c11", "-O2", "-shared", "-fPIC"),
    instead="the plain reader needs no compiler (LAB_READER=plain)",
    portable=True,
)


def wants_plain() -> bool:
    return os.environ.get(READER) == "plain"


def find(
    source: Path, packaged: Path, typed: Callable[[ctypes.CDLL], ctypes.CDLL]
) -> tuple[ctypes.CDLL | None, str]:
    """The library of `source` and where it is from; None and why there is none.

    packaged: where a platform wheel has it; typed: gives its functions their types.
    """
    try:
        if packaged.exists():
            return typed(C.loaded(packaged)), "native, from the package"
        return typed(C.built(source)), "native, compiled here"
    except LabError as error:
        return None, f"plain: {error.what.splitlines()[0]}"
