"""Record one cell: by nsys where it works, otherwise by torch.profiler; `collector.json` has the reason.

    python -m lab.rooms.nsys.workload.record --collector auto --out DIR -- --model-size small ...

Under nsys the workload gets an allow-listed environment, because a capture holds all of it; the export is
scrubbed before it takes its name, and nsys' own file is deleted (--keep-original keeps it). An exit code
proves nothing: the export must hold kernels. LAB_NSYS names an nsys that is not on PATH.
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
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from lab.core.files import write_atomic
from lab.errors import LabError, MissingError, StepFailed
from lab.recordings.nsys.scrub import scrub
from lab.secrets import is_secret

WORKLOAD = (sys.executable, "-u", "-m", "lab.rooms.nsys.workload")
CAPTURE = "capture.sqlite"
DRAFT = ".nsys_capture"
RESULTS = (CAPTURE, "capture.json.gz", "capture.nsys-rep", "cell.json", "collector.json")
# No CPU samples, no context switches: those need privileges that a container should not have. Graphs node
# by node.
FLAGS = """
--trace=cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace=node --capture-range=cudaProfilerApi
--capture-range-end=stop --force-overwrite=true --export=sqlite
"""
ALLOWED = """
PATH HOME USER LOGNAME LANG LC_ TMPDIR TERM LD_LIBRARY_PATH PYTHON VIRTUAL_ENV CUDA_ NVIDIA_ CUBLAS_ CUDNN_
NCCL_ TORCH PYTORCH_ TRITON_ OMP_ MKL_ XDG_CACHE_HOME LAB_ NSYS_ QUADD_
"""


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
    """The recorder's flags, and after `--` the workload's."""
    end = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(prog="lab.rooms.nsys.workload.record")
    parser.add_argument("--collector", choices=["auto", "nsys", "kineto"], default="auto")
    parser.add_argument("--keep-original", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(argv[:end]), argv[end + 1 :]


def record(options: argparse.Namespace, arguments: list[str]) -> int:
    """Record with nsys if allowed; under `auto` torch.profiler takes over and states the reason."""
    # Files of an earlier attempt must not pass for this one's, nor an unscrubbed draft of a killed one stay.
    for path in [*(options.out / name for name in RESULTS), *options.out.glob(f"{DRAFT}*")]:
        path.unlink(missing_ok=True)
    reason = _reason_against_nsys(options.collector, arguments)
    if reason is None:
        reason = _record_with_nsys(options, arguments)
        if reason is None:
            return 0
        if options.collector == "nsys":
            raise StepFailed(
                f"nsys could not record: {reason}", fix="--collector auto falls back to torch.profiler"
            )
        print(f"lab: nsys could not record ({reason}); torch.profiler records instead", file=sys.stderr)
    _write_collector(options.out, "kineto", reason)
    sys.stderr.flush()
    return subprocess.run([*WORKLOAD, *arguments, "--collector", "kineto"], check=False).returncode


def _reason_against_nsys(collector: str, arguments: Sequence[str]) -> str | None:
    """Why torch.profiler records from the start; None if nsys does. Raises MissingError if it must."""
    if collector == "kineto":
        return "torch.profiler was requested"
    if ("--device", "cpu") in pairwise(arguments):
        return "nsys records GPUs; this is a CPU run"
    if _find_nsys() is None:
        if collector == "nsys":
            raise MissingError(
                "nsys not found", fix="use the image cuda, put nsys on PATH, or set LAB_NSYS to its path"
            )
        return "nsys not found"
    return None


def _find_nsys() -> str | None:
    return shutil.which(os.environ.get("LAB_NSYS") or "nsys")


def _record_with_nsys(options: argparse.Namespace, arguments: list[str]) -> str | None:
    """Why nsys failed; None if its capture is in `options.out`, or the cell ran out of memory."""
    draft = options.out / DRAFT
    command = [str(_find_nsys()), "profile", *FLAGS.split(), f"--output={draft}"]
    command += [*WORKLOAD, *arguments, "--collector", "nsys"]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(tuple(ALLOWED.split())) and not is_secret(name)
    }
    try:
        code = subprocess.run(command, env=environment, check=False).returncode
        cell = options.out / "cell.json"
        if not cell.exists():
            return f"the process under it left no result and exit code {code}"
        is_oom = msgspec.json.decode(cell.read_bytes())["outcome"] == "oom"
        reason = None if is_oom else _take_in(draft, options)
        if reason is None:
            _write_collector(options.out, "nsys", None)
        return reason
    finally:
        for path in options.out.glob(f"{DRAFT}*"):
            path.unlink()


def _take_in(draft: Path, options: argparse.Namespace) -> str | None:
    """Scrub nsys' export and give it its name; returns why it cannot be used, or None."""
    export, report = (draft.with_name(f"{DRAFT}.{ending}") for ending in ("sqlite", "nsys-rep"))
    if not export.exists():
        endings = sorted(path.name.removeprefix(DRAFT) for path in options.out.glob(f"{DRAFT}*"))
        return f"it left no SQLite export{f', only {endings}' if endings else ''}"
    if not _has_kernels(export):
        return "its export has no kernels"
    scrub(export, options.out / CAPTURE)
    if report.exists() and options.keep_original:
        report.replace(options.out / "capture.nsys-rep")
    return None


def _has_kernels(export: Path) -> bool:
    """Whether the kernel table has a row; False without such a table or database."""
    with contextlib.closing(sqlite3.connect(f"file:{export}?mode=ro", uri=True)) as database:
        try:
            rows = database.execute("SELECT 1 FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1").fetchall()
        except sqlite3.DatabaseError:
            return False
    return bool(rows)


def _write_collector(out: Path, name: str, reason: str | None) -> None:
    """Write `collector.json`: the collector, and why it is not nsys."""
    content = {"collector": name, "reason": reason}
    write_atomic(out / "collector.json", msgspec.json.format(msgspec.json.encode(content)) + b"\n")


if __name__ == "__main__":
    main()
