"""A C or C++ source of lab compiled into a shared library by this machine's compiler, once, and loaded.

It is kept in $XDG_CACHE_HOME/lab/native (or ~/.cache/lab/native) under a hash of what it was made of: a
change of any part gives another file. The file gets its name only when it is complete, so processes that
compile at the same time do not interfere. A platform wheel brings portable ones along (lab/_native).
What only compiling needs is imported there: nearly every process finds its library compiled.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError, MissingError, storage_error

COMPILER_S = 120.0
PACKAGED = Path(__file__).parents[1] / "_native"  # what a platform wheel brings (scripts/hatch_build.py)


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
        if self.portable:
            place = folder(self.instead) / self.file_name(source)
            if not place.exists():
                self.compile_to(place, source, self.find_compiler()[0])
        else:
            compiler, version = self.find_compiler()
            place = folder(self.instead) / f"{source.stem}-{self.key(source, compiler, version)}.so"
            if not place.exists():
                self.compile_to(place, source, compiler)
        return self.loaded(place)

    def packaged(self, source: Path) -> Path | None:
        """Find the library of exactly this source for this kind of machine in the wheel."""
        place = PACKAGED / self.file_name(source)
        return place if place.is_file() else None

    def file_name(self, source: Path) -> str:
        """Name a portable library: the same on every machine of this kind."""
        return f"{source.stem}-{self.key(source, [], '')}.so"

    def loaded(self, place: Path) -> ctypes.CDLL:
        """Load it. Raises MissingError for a file that this machine cannot load."""
        try:
            return ctypes.CDLL(str(place))
        except OSError as error:
            fix = "remove the file, or set XDG_CACHE_HOME to a folder from which programs may be run"
            raise MissingError(
                f"the compiled library does not load: {error}", location=place, fix=f"{fix}; {self.instead}"
            ) from error

    def find_compiler(self) -> tuple[list[str], str]:
        """The variable's command, or the first usual name that answers; its version. Raises MissingError."""
        import shlex
        import shutil

        from_variable = os.environ.get(self.variable)
        for name in [from_variable] if from_variable else self.names:
            command = shlex.split(name)
            if command and shutil.which(command[0]):
                return command, self._version_of(command)
        problem = f"no {self.language} compiler here"
        if from_variable:
            problem = f"${self.variable} is {from_variable!r}, which is not a program here"
        raise MissingError(
            problem,
            location=f"PATH, for {from_variable or ', '.join(self.names)}",
            fix=f"install {' or '.join(self.names[1:])}, or name one in {self.variable}; {self.instead}",
        )

    def key(self, source: Path, compiler: list[str], version: str) -> str:
        import shlex

        headers = (header.read_text() for header in sorted(source.parent.glob("*.h")))
        machine = platform.machine() if self.portable else processor()
        parts = (source.read_text(), *headers, shlex.join(compiler), *self.flags, version, machine)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]

    def compile_to(self, place: Path, source: Path, compiler: list[str]) -> None:
        """Compile beside `place` and rename. Raises MissingError."""
        import tempfile

        try:
            with tempfile.TemporaryDirectory(prefix=".compiling-", dir=place.parent) as scratch:
                library = Path(scratch) / place.name
                self.run_compiler([*compiler, *self.flags, str(source), "-o", str(library)], scratch)
                os.replace(library, place)
        except OSError as error:
            raise not_kept(storage_error(error, place).problem, place.parent, self.instead) from error

    def run_compiler(self, command: list[str], scratch: str) -> None:
        import subprocess

        try:
            process = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=COMPILER_S,
                check=False,
                env={**os.environ, "TMPDIR": scratch, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired as error:
            raise self._no_use(f"took more than {COMPILER_S:.0f} s", command) from error
        if process.returncode:
            output = (process.stderr or process.stdout).strip() or "no output"
            raise self._no_use(f"failed ({process.returncode}):\n{output[-4000:]}", command)

    def _version_of(self, command: list[str]) -> str:
        import subprocess

        try:
            process = subprocess.run(
                [*command, "--version"], capture_output=True, text=True, timeout=COMPILER_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise self._no_use(f"did not report its version: {error}", command) from error
        return process.stdout

    def _no_use(self, failure: str, command: list[str]) -> MissingError:
        import shlex

        fix = f"name another in {self.variable}; {self.instead}"
        return MissingError(f"the {self.language} compiler {failure}", location=shlex.join(command), fix=fix)


def folder(instead: str) -> Path:
    """The folder for compiled libraries, created if necessary. Raises MissingError if it cannot be."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if root.startswith("~"):
        raise not_kept("this user has no home", root, instead)
    cache = Path(root).absolute() / "lab" / "native"
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = cache.stat()
    except OSError as error:
        raise not_kept(storage_error(error, cache).problem, cache, instead) from error
    # Libraries in this folder are executed.
    if about.st_uid not in (os.getuid(), 0) or about.st_mode & 0o022:
        raise not_kept("others may write to the folder", cache, instead)
    return cache


def processor() -> str:
    """Read what -march=native depends on: machines of several kinds may share a cache."""
    names = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]  # not Linux: only the kind of processor is known
    processor_lines = sorted({line for line in lines if line.split("\t")[0].strip(" :") in names})
    return "\n".join([platform.machine(), *(processor_lines or lines)])


def not_kept(reason: str, place: Path | str, instead: str) -> LabError:
    fix = f"set XDG_CACHE_HOME to a folder that you can write to; {instead}"
    return MissingError(f"the compiled library cannot be kept: {reason}", location=place, fix=fix)
