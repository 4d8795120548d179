"""Record one cell: by nsys where it works, otherwise by torch.profiler; `collector.json` has the reason.

    python -m lab.rooms.nsys.workload.record --collector auto --out DIR -- --model-size small ...

Under nsys the workload gets an allow-listed environment, because a capture holds all of it; the
export is scrubbed before it takes its name, and nsys' own file is deleted (--keep-original keeps it). An
exit code proves
nothing: the export must hold kernels. LAB_NSYS names an nsys that is not on PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.core.files import write_atomic
from lab.errors import LabError, MissingError, StepFailed
from lab.recordings.nsys.scrub import scrub
from lab.secrets import is_secret

WORKLOAD = "lab.rooms.nsys.workload"
CAPTURE = "capture.sqlite"
DRAFT = ".nsys_capture"
LEFT = (CAPTURE, "capture.json.gz", "capture.nsys-rep", "cell.json", "collector.json")
# No CPU samples, no context switches: those need privileges that a container should not have. Graphs node
# by node.
FLAGS = (
    "--trace=cuda,nvtx",
    "--sample=none",
    "--cpuctxsw=none",
    "--cuda-graph-trace=node",
    "--capture-range=cudaProfilerApi",
    "--capture-range-end=stop",
    "--force-overwrite=true",
    "--export=sqlite",
)
ALLOWED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_",
    "TMPDIR",
    "TERM",
    "LD_LIBRARY_PATH",
    "PYTHON",
    "VIRTUAL_ENV",
    "CUDA_",
    "NVIDIA_",
    "CUBLAS_",
    "CUDNN_",
    "NCCL_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "OMP_",
    "MKL_",
    "XDG_CACHE_HOME",
    "LAB_",
    "NSYS_",
    "QUADD_",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Record, and exit with the code of the workload or of a lab error."""
    options, arguments = parse(sys.argv[1:] if argv is None else list(argv))
    # As an exception, so that files left by nsys are deleted on exit.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        code = record(options, [*arguments, "--out", str(options.out)])
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        code = error.exit_code
    sys.exit(code)


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own flags, and after `--` the workload's."""
    at = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(prog="lab.rooms.nsys.workload.record")
    parser.add_argument("--collector", choices=["auto", "nsys", "kineto"], default="auto")
    parser.add_argument("--keep-original", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(argv[:at]), argv[at + 1 :]


def record(options: argparse.Namespace, arguments: list[str]) -> int:
    """Record with nsys if allowed; under `auto` torch.profiler takes over and states the reason."""
    # Files of an earlier attempt must not pass for this one's, nor an unscrubbed draft of a killed one stay.
    for left in [*(options.out / name for name in LEFT), *options.out.glob(f"{DRAFT}*")]:
        left.unlink(missing_ok=True)
    why_not = reason_against_nsys(options.collector, arguments)
    if why_not is None:
        why_not = record_with_nsys(options, arguments)
        if why_not is None:
            return 0
        if options.collector == "nsys":
            raise StepFailed(
                f"nsys could not record: {why_not}", fix="--collector auto falls back to torch.profiler"
            )
        print(f"lab: nsys could not record ({why_not}); torch.profiler records instead", file=sys.stderr)
    write_collector(options.out, "kineto", why_not)
    sys.stderr.flush()
    command = [sys.executable, "-u", "-m", WORKLOAD, *arguments, "--collector", "kineto"]
    return subprocess.run(command, check=False).returncode


def reason_against_nsys(asked: str, arguments: Sequence[str]) -> str | None:
    """Why torch.profiler records from the start; None if nsys does. Raises MissingError if it must."""
    if asked == "kineto":
        return "torch.profiler was requested"
    if value_of("--device", arguments) == "cpu":
        return "nsys records GPUs; this is a CPU run"
    if find_nsys() is None:
        if asked == "nsys":
            raise MissingError(
                "nsys not found", fix="use the image cuda, put nsys on PATH, or set LAB_NSYS to its path"
            )
        return "nsys not found"
    return None


def find_nsys() -> str | None:
    return shutil.which(os.environ.get("LAB_NSYS") or "nsys")


def value_of(flag: str, arguments: Sequence[str]) -> str | None:
    return arguments[arguments.index(flag) + 1] if flag in arguments[:-1] else None


def record_with_nsys(options: argparse.Namespace, arguments: list[str]) -> str | None:
    """Why nsys failed; None if its capture is in `options.out`, or the cell ran out of memory."""
    draft, nsys = options.out / DRAFT, str(find_nsys())
    command = [
        nsys,
        "profile",
        *FLAGS,
        f"--output={draft}",
        sys.executable,
        "-u",
        "-m",
        WORKLOAD,
        *arguments,
        "--collector",
        "nsys",
    ]
    try:
        code = subprocess.run(command, env=allowed(os.environ), check=False).returncode
        outcome = outcome_of(options.out)
        if outcome is None:
            return f"the process under it left no result and exit code {code}"
        why_not = None if outcome == "oom" else take_in(draft, options)
        if why_not is None:
            write_collector(options.out, "nsys", None, nsys)
        return why_not
    finally:
        for left in options.out.glob(f"{DRAFT}*"):
            left.unlink()


def take_in(draft: Path, options: argparse.Namespace) -> str | None:
    """Scrub nsys' export and give it its name; returns why it cannot be used, or None."""
    export = draft.with_name(f"{DRAFT}.sqlite")
    report = draft.with_name(f"{DRAFT}.nsys-rep")
    if not export.exists():
        left = sorted(path.name.removeprefix(DRAFT) for path in options.out.glob(f"{DRAFT}*"))
        return f"it left no SQLite export{f', only {left}' if left else ''}"
    if not count_kernels(export):
        return "its export holds no kernels"
    scrub(export, options.out / CAPTURE)
    if report.exists() and options.keep_original:
        report.replace(options.out / "capture.nsys-rep")
    return None


def count_kernels(export: Path) -> int:
    """Rows of the kernel table; 0 without such a table or database."""
    with contextlib.closing(sqlite3.connect(f"file:{export}?mode=ro", uri=True)) as database:
        try:
            (count,) = database.execute("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
        except sqlite3.DatabaseError:
            return 0
    return int(count)


def outcome_of(out: Path) -> str | None:
    """The outcome that the workload recorded; None without one."""
    path = out / "cell.json"
    return msgspec.json.decode(path.read_bytes())["outcome"] if path.exists() else None


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that programs need; all others stay out of the capture."""
    return {
        name: value for name, value in environment.items() if name.startswith(ALLOWED) and not is_secret(name)
    }


def write_collector(out: Path, name: str, reason: str | None, nsys: str | None = None) -> None:
    """Write `collector.json`: the collector, its version, and why it is not nsys."""
    content: dict[str, Any] = {"collector": name, "reason": reason, "nsys_version": version_of(nsys)}
    write_atomic(out / "collector.json", msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def version_of(nsys: str | None) -> str | None:
    """The line that `nsys --version` prints."""
    if nsys is None:
        return None
    done = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=False, timeout=60)
    lines = done.stdout.strip().splitlines()
    return lines[-1] if lines else None


if __name__ == "__main__":
    main()
