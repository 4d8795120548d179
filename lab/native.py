"""A C or C++ source of lab as a shared library: a platform wheel's, else compiled here, once.

A compiled one is kept in $XDG_CACHE_HOME/lab/native (or ~/.cache/lab/native) under a hash of what it was
made of: a change of any part gives another file. The file gets its name only when it is complete, so
processes that compile at the same time do not interfere. What only compiling needs is imported there: nearly
every process finds its library compiled.

Beside every C file stands a plain form in Python that gives the same answers: it is used where there is no
compiler, and where LAB_READER is `plain`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lab.errors import LabError, MissingError, storage_error

COMPILER_S = 120.0
PACKAGED = Path(__file__).parent / "_native"  # what a platform wheel brings (scripts/hatch_build.py)
READER = "LAB_READER"  # "plain" leaves C out


@dataclass(frozen=True)
class Compiling:
    """How the sources of one kind are compiled. instead: what a user can do without a compiler.

    portable: the library runs on any processor of this machine's kind, so that neither the compiler's version
    nor the processor is part of its name, and a compiled one needs no compiler to be found.
    """

    language: str
    variable: str
    names: tuple[str, ...]
    flags: tuple[str, ...]
    instead: str
    portable: bool = False

    def built(self, source: Path) -> ctypes.CDLL:
        """Load the library, compiled if the cache has none. Raises MissingError with its output."""
        compiler, version = ([], "") if self.portable else self.find_compiler()
        path = self.folder() / self.file_name(source, compiler, version)
        if not path.exists():
            self.compile_to(path, source, compiler or self.find_compiler()[0])
        return self.loaded(path)

    def packaged(self, source: Path) -> Path | None:
        """Find the library of exactly this source for this kind of machine in the wheel."""
        path = PACKAGED / self.file_name(source)
        return path if path.is_file() else None

    def file_name(self, source: Path, compiler: Sequence[str] = (), version: str = "") -> str:
        """Name the library; the name of a portable one is the same on every machine of this kind."""
        headers = (header.read_text() for header in sorted(source.parent.glob("*.h")))
        machine = platform.machine() if self.portable else processor()
        parts = (source.read_text(), *headers, " ".join(compiler), *self.flags, version, machine)
        return f"{source.stem}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:20]}.so"

    def loaded(self, path: Path) -> ctypes.CDLL:
        """Load it. Raises MissingError for a file that this machine cannot load."""
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            fix = "remove the file, or set XDG_CACHE_HOME to a folder from which programs may be run"
            raise self._missing(f"the compiled library does not load: {error}", path, fix) from error

    def find_compiler(self) -> tuple[list[str], str]:
        """The variable's command, or the first usual name that answers; its version. Raises MissingError."""
        import shlex
        import shutil

        choice = os.environ.get(self.variable)
        names = [choice] if choice else self.names
        for name in names:
            command = shlex.split(name)
            if command and shutil.which(command[0]):
                return command, self._run([*command, "--version"])
        raise self._missing(
            f"no {self.language} compiler here",
            f"PATH, for {', '.join(names)}",
            f"install {' or '.join(self.names[1:])}, or name one in {self.variable}",
        )

    def folder(self) -> Path:
        """The folder for compiled libraries, created if necessary. Raises MissingError if it cannot be."""
        root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        if root.startswith("~"):
            raise self._not_kept("this user has no home", root)
        cache = Path(root).absolute() / "lab" / "native"
        try:
            cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = cache.stat()
        except OSError as error:
            raise self._not_kept(storage_error(error, cache).problem, cache) from error
        # Libraries in this folder are executed.
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o022:
            raise self._not_kept("others may write to the folder", cache)
        return cache

    def compile_to(self, path: Path, source: Path, compiler: list[str]) -> None:
        """Compile beside `path` and rename. Raises MissingError."""
        import tempfile

        try:
            with tempfile.TemporaryDirectory(prefix=".compiling-", dir=path.parent) as scratch:
                library = Path(scratch) / path.name
                self._run([*compiler, *self.flags, str(source), "-o", str(library)], TMPDIR=scratch)
                os.replace(library, path)
        except OSError as error:
            raise self._not_kept(storage_error(error, path).problem, path.parent) from error

    def _run(self, command: list[str], **env: str) -> str:
        """Run the compiler; -> its output. Raises MissingError with the output of one that fails."""
        import subprocess

        try:
            process = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMPILER_S,
                check=False,
                env={**os.environ, "LC_ALL": "C", **env},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            failure = f"did not end well: {error}"
        else:
            if process.returncode == 0:
                return process.stdout
            failure = f"failed ({process.returncode}):\n{process.stdout.strip()[-4000:]}"
        problem, fix = f"the {self.language} compiler {failure}", f"name another in {self.variable}"
        raise self._missing(problem, " ".join(command), fix)

    def _not_kept(self, reason: str, path: Path | str) -> MissingError:
        fix = "set XDG_CACHE_HOME to a folder that you can write to"
        return self._missing(f"the compiled library cannot be kept: {reason}", path, fix)

    def _missing(self, problem: str, location: Path | str, fix: str) -> MissingError:
        return MissingError(problem, location=location, fix=f"{fix}; {self.instead}")


def processor() -> str:
    """Read what -march=native depends on: machines of several kinds may share a cache."""
    names = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]  # not Linux: only the kind of processor is known
    processor_lines = sorted({line for line in lines if line.split("\t")[0].strip(" :") in names})
    return "\n".join([platform.machine(), *(processor_lines or lines)])


C = Compiling(
    language="C",
    variable="CC",
    names=("cc", "gcc", "clang"),
    flags=("-std=c11", "-O2", "-shared", "-fPIC"),
    instead="the plain form needs no compiler (LAB_READER=plain)",
    portable=True,
)


class Library:
    """The library of `source`, found on first use; `typed` gives its functions their types."""

    def __init__(self, source: Path, typed: Callable[[ctypes.CDLL], ctypes.CDLL]) -> None:
        self.source, self._typed = source, typed

    def get(self) -> ctypes.CDLL | None:
        """Return the library; None without one, and where $LAB_READER asks for the plain form."""
        return None if os.environ.get(READER) == "plain" else self._search[0]

    def state(self) -> str:
        """Say which form is in use, and the reason, for `lab doctor`."""
        return f"plain, as {READER} asks" if os.environ.get(READER) == "plain" else self._search[1]

    @cached_property
    def _search(self) -> tuple[ctypes.CDLL | None, str]:
        """The library, and its origin or the reason for its absence."""
        reason = " (the one that came with this lab is for another machine or version)"
        if not PACKAGED.is_dir():
            reason = ""
        if path := C.packaged(self.source):
            try:
                return self._typed(C.loaded(path)), "native, from the wheel"
            except LabError as error:
                reason = f" (of the wheel's, {error.problem.splitlines()[0]})"
        try:
            return self._typed(C.built(self.source)), f"native, compiled here{reason}"
        except LabError as error:
            return None, f"plain: {error.problem.splitlines()[0]}{reason}"
