"""A C++ source of this folder compiled into a shared library, as `lab.native` does it.

It links nothing but the C++ standard library and threads; its name depends on the compiler and on this
processor, for which it is made.
"""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

from lab.native import Compiling

log = logging.getLogger("lab.semicrf")
SOURCE = Path(__file__).with_name("semicrf.cpp")


class Announced(Compiling):
    """Says what takes so long."""

    def compile_to(self, path: Path, source: Path, compiler: list[str]) -> None:
        log.warning("compiling the semi-CRF's %s for this processor, once: some seconds", source.name)
        super().compile_to(path, source, compiler)


CPP = Announced(
    language="C++",
    variable="CXX",
    names=("c++", "g++", "clang++"),
    flags=(
        "-std=c++17",
        "-O3",
        "-march=native",
        "-ffp-contract=fast",
        "-fno-math-errno",
        "-shared",
        "-fPIC",
        "-pthread",
    ),
    instead="backend='torch' needs no compiler",
)
find_compiler, file_name, folder = CPP.find_compiler, CPP.file_name, CPP.folder


def built(source: Path = SOURCE) -> ctypes.CDLL:
    """The library, compiled if the cache has none. Raises MissingError with the compiler's own words."""
    return CPP.built(source)
