"""What is checked before a command runs under nixnan: the tool, nvdisasm, the GPU, bins.

Each of these would otherwise show only as an empty log.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import (
    ConfigError,
    GpuError,
    MissingError,
    UsageError,
    not_here,
)
from lab.secrets import expanded

LEAST_CAPABILITY = 8.6
KNOWN_PATHS = (
    "nixnan.so",
    "../nixnan/nixnan.so",
    "~/nixnan/nixnan.so",
    "/opt/lab/nixnan.so",
    "/opt/nixnan/nixnan.so",
    "/usr/local/lib/nixnan.so",
)
FLAGS = (
    "SAMPLING",
    "LINE_INFO",
    "MAX_ERRORS",
    "HISTOGRAM",
    "BIN_SPEC_FILE",
    "ENABLE_FUN_DETAIL",
    "LOG_KERNELS",
    "LOGFILE",
)


def check_shared_object(path: Path) -> None:
    """Refuse a file that an x86-64 container could not load. Reads only its ELF header."""
    with path.open("rb") as file:
        head = file.read(20)
    complaint = None
    if head[:4] != b"\x7fELF":
        complaint = "is not an ELF shared object" if head else "is an empty file, not an ELF shared object"
    elif len(head) < 20 or head[4] != 2:
        complaint = "is not a 64-bit ELF file"
    else:
        kind, machine = struct.unpack_from("<HH", head, 16)
        if kind != 3:
            complaint = "is an ELF file, but not a shared object"
        elif machine != 62:
            complaint = "is not built for x86-64"
    if complaint:
        raise UsageError(
            f"NIXNAN_SO {complaint}", location=path, fix="name the nixnan.so that you built for this machine"
        )


def find_tool(env: Mapping[str, str]) -> Path:
    """The tool from NIXNAN_SO, from the image, or from a known path. Raises MissingError."""
    for name in ("NIXNAN_SO", "CUDA_INJECTION64_PATH"):
        if env.get(name):
            path = expanded(env[name])
            if not path.is_file():
                raise MissingError(
                    f"the file named in {name} does not exist",
                    location=path,
                    fix="name the nixnan.so that you built",
                )
            return path.resolve()
    for path in map(expanded, KNOWN_PATHS):
        if path.is_file():
            return path.resolve()
    raise MissingError(
        "no nixnan.so: NIXNAN_SO is not set, and none in the known paths",
        location=", ".join(KNOWN_PATHS),
        fix="build it from parfloat/nixnan and name it in NIXNAN_SO",
    )


def check_named(env: Mapping[str, str], *, in_container: bool, dry_run: bool) -> None:
    """Whether steps will find the tool, as far as this machine can say, before the first of them starts.

    A plan that only shows needs no tool yet, but what is named must be one. Raises MissingError for no file,
    UsageError for one that is not an x86-64 shared object.
    """
    if not env.get("NIXNAN_SO") and dry_run:
        return
    if not env.get("NIXNAN_SO") and in_container:
        raise MissingError(
            "NIXNAN_SO is not set: containers get the nixnan.so that it names",
            fix="build it from parfloat/nixnan, then NIXNAN_SO=/path/to/nixnan.so lab run nixnan ...",
        )
    check_shared_object(find_tool(env))


def preflight(tool: Path, env: Mapping[str, str]) -> Path:
    """Check everything that would otherwise show only as an empty log.

    A wrong file, missing nvdisasm, an old GPU, another injected tool.
    """
    check_shared_object(tool)
    if shutil.which("nvdisasm", path=env.get("PATH")) is None:
        raise MissingError(
            "nvdisasm is not on PATH: the tool disassembles kernels with it",
            fix="it comes with the CUDA toolkit: add its bin folder to PATH",
        )
    injected = env.get("CUDA_INJECTION64_PATH", "")
    if injected and Path(injected).resolve() != tool:
        raise UsageError(
            "another tool is already injected into CUDA programs",
            location=injected,
            fix="unset CUDA_INJECTION64_PATH: nsys, a sanitizer and nixnan exclude each other",
        )
    check_loads(tool, env)
    check_gpu(env)
    return tool


def check_loads(tool: Path, env: Mapping[str, str]) -> None:
    """Load the tool in a process of its own; the loader's message says which library or symbol is missing."""
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1], mode=1)"
    process = subprocess.run(
        [sys.executable, "-c", program, str(tool)],
        env=scrubbed(env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if process.returncode:
        words = [line for line in process.stderr.splitlines() if line.strip()]
        reason = words[-1] if words else f"ended with {process.returncode}"
        raise MissingError(
            f"the tool cannot be loaded: {reason}",
            location=tool,
            fix="build it against this machine's CUDA 12 and driver",
        )


def check_gpu(env: Mapping[str, str]) -> None:
    """Raises GpuError for a GPU that the tool does not support. Without nvidia-smi nothing is checked."""
    smi = shutil.which("nvidia-smi", path=env.get("PATH"))
    if smi is None:
        return
    command = [smi, "--query-gpu=compute_cap,name", "--format=csv,noheader"]
    process = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=60, check=False)
    for line in process.stdout.splitlines() if not process.returncode else ():
        capability, _, name = line.partition(",")
        with contextlib.suppress(ValueError):
            if float(capability) < LEAST_CAPABILITY:
                needed = f"nixnan needs {LEAST_CAPABILITY} or newer"
                raise GpuError(
                    f"{name.strip()} has compute capability {capability}: {needed}",
                    fix="use an Ampere GPU (RTX 30xx, A10) or newer; `lab run nan` works on every GPU",
                )


def scrubbed(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without the tool and its flags."""
    clean_env = {name: value for name, value in env.items() if name not in (*FLAGS, "CUDA_INJECTION64_PATH")}
    preload = [word for word in clean_env.pop("LD_PRELOAD", "").split(":") if word and "nixnan" not in word]
    return {**clean_env, **({"LD_PRELOAD": ":".join(preload)} if preload else {})}


def read_bin_spec(path: Path) -> str:
    """The text of a specification of exponent bins.

    If the tool cannot read it, it ends with exit code 0 before running anything.
    """
    try:
        text = path.read_text(encoding="utf-8")
        spec = msgspec.json.decode(text)
    except FileNotFoundError as error:
        raise not_here("no such bin specification", path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the bin specification is not JSON: {error}", location=path) from error
    check_bin_spec(spec, path)
    return text


def check_bin_spec(spec: Any, path: Path) -> None:
    """{"count": n, "f16": [[low, high], ...], ...}: exponents in order. Raises ConfigError."""
    if not isinstance(spec, dict) or not isinstance(spec.get("count"), int):
        raise ConfigError('a bin specification is {"count": n, "f16": [[low, high], ...]}', location=path)
    for name, bins in spec.items():
        if name == "count":
            continue
        if name not in ("f16", "bf16", "f32", "f64") or not isinstance(bins, list):
            raise ConfigError(
                f"{name!r} is not a type with a list of bins", location=path, fix="f16, bf16, f32 or f64"
            )
        for bounds in bins:
            good = (
                isinstance(bounds, list) and len(bounds) == 2 and all(isinstance(end, int) for end in bounds)
            )
            if not good or bounds[0] > bounds[1]:
                raise ConfigError(f"{bounds!r} of {name} is not a range [low, high]", location=path)
