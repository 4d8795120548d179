"""A C++ source of this folder compiled into a shared library by this machine's compiler, once, and loaded.

It is kept in $XDG_CACHE_HOME/lab/native (or ~/.cache/lab/native) under the hash of the source and the headers
beside it, the flags, the compiler's version and this processor: a change of any gives another file. The file
gets its name only when it is complete, so processes that compile at the same time do not interfere. It links
nothing but the C++ standard library and threads.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from lab.errors import LabError, MissingError, storage_error

log = logging.getLogger("lab.semicrf")
SOURCE = Path(__file__).with_name("semicrf.cpp")
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-shared",
    "-fPIC",
    "-pthread",
)
COMPILER_S = 120.0
TORCH = "backend='torch' needs no compiler"


def built(source: Path = SOURCE) -> ctypes.CDLL:
    """The library, compiled if the cache has none. Raises MissingError with the compiler's own words."""
    compiler, version = find_compiler()
    place = folder() / f"{source.stem}-{key(source, compiler, version)}.so"
    if not place.exists():
        compile_to(place, source, compiler)
    try:
        found = ctypes.CDLL(str(place))
    except OSError as error:
        fix = f"remove the file, or set XDG_CACHE_HOME to a folder from which programs may be run; {TORCH}"
        raise MissingError(f"the compiled library does not load: {error}", where=place, fix=fix) from error
    log.debug("semi-CRF in C++: %s", place)
    return found


def find_compiler() -> tuple[list[str], str]:
    """$CXX, or the first of the usual names that answers; and its version. Raises MissingError."""
    own = os.environ.get("CXX")
    for name in [own] if own else COMPILERS:
        command = shlex.split(name)
        if command and shutil.which(command[0]):
            return command, version_of(command)
    what = f"$CXX is {own!r}, which is not a program here" if own else "no C++ compiler here"
    raise MissingError(
        what,
        where=f"PATH, for {own or ', '.join(COMPILERS)}",
        fix=f"install g++ or clang++, or name one in CXX; {TORCH}",
    )


def version_of(command: list[str]) -> str:
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=COMPILER_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(
            f"the C++ compiler did not report its version: {error}",
            where=shlex.join(command),
            fix=f"name another in CXX; {TORCH}",
        ) from error
    return done.stdout


def folder() -> Path:
    """The folder for compiled libraries, created if necessary. Raises MissingError if it cannot be."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if root.startswith("~"):
        raise not_kept("this user has no home", root)
    found = Path(root).absolute() / "lab" / "native"
    try:
        found.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = found.stat()
    except OSError as error:
        raise not_kept(storage_error(error, found).what, found) from error
    # What lies here is run.
    if about.st_uid not in (os.getuid(), 0) or about.st_mode & 0o022:
        raise not_kept("others may write to the folder", found)
    return found


def key(source: Path, compiler: list[str], version: str) -> str:
    headers = (header.read_text() for header in sorted(source.parent.glob("*.h")))
    parts = (source.read_text(), *headers, shlex.join(compiler), *FLAGS, version, processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def processor() -> str:
    """What -march=native depends on: a cache may be shared by machines of several kinds."""
    names = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]  # no Linux: the kind of processor must do
    kept = sorted({line for line in lines if line.split("\t")[0].strip(" :") in names})
    return "\n".join([platform.machine(), *(kept or lines)])


def compile_to(place: Path, source: Path, compiler: list[str]) -> None:
    """Compile beside `place` and rename. Raises MissingError."""
    try:
        with tempfile.TemporaryDirectory(prefix=".compiling-", dir=place.parent) as own:
            made = Path(own) / place.name
            run_compiler([*compiler, *FLAGS, str(source), "-o", str(made)], own)
            os.replace(made, place)
    except OSError as error:
        raise not_kept(storage_error(error, place).what, place.parent) from error


def run_compiler(command: list[str], scratch: str) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMPILER_S,
            check=False,
            env={**os.environ, "TMPDIR": scratch, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise MissingError(
            f"the C++ compiler took more than {COMPILER_S:.0f} s",
            where=shlex.join(command),
            fix=f"name another in CXX; {TORCH}",
        ) from error
    if done.returncode:
        output = (done.stderr or done.stdout).strip() or "no output"
        raise MissingError(
            f"the C++ compiler failed ({done.returncode}):\n{output[-4000:]}",
            where=shlex.join(command),
            fix=f"name another in CXX; {TORCH}",
        )


def not_kept(why: str, place: Path | str) -> LabError:
    fix = f"set XDG_CACHE_HOME to a folder that you can write to; {TORCH}"
    return MissingError(f"the compiled library cannot be kept: {why}", where=place, fix=fix)
