"""Whole commands on small and large traces: what a start costs (a) and what a megabyte adds (b).

The tiny trace has 20 launches; the others are one rank of a sweep, repeated. Bars: `lab gemm report` of
the tiny one 0.8 CPU s, of which pandas takes 0.2; of 200 MB `lab kernels unique -o` 2.5 and `lab nsys summary
-o` 3.3 CPU s.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

from bench import traces
from bench.measure import Cost, cost, side_by_side
from bench.table import Row, at_most, line_of, measured

RUN = """
    import sys
    from lab.cli.main import main
    sys.argv[0] = "lab"
    main()
"""
COMMANDS = {
    "lab gemm report": "gemm report {folder} -w 1 -q -o {out}",
    "lab gemm report, second look": "gemm report {folder} -w 1 -q -o {out}",
    "lab kernels unique -o": "kernels unique {file} -o {out}",
    "lab nsys summary": "nsys summary {file}",
    "lab nsys summary -o": "nsys summary {file} -o {out}",
    "lab ranks": "ranks {folder}",
    "lab inspect": "inspect {file}",
}
BARS_S = {
    ("lab gemm report", "tiny"): 0.8,
    ("lab kernels unique -o", "200"): 2.5,
    ("lab nsys summary -o", "200"): 3.3,
}
ROUNDS = int(os.environ.get("LAB_BENCH_ROUNDS", "3"))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        files = {
            "tiny": traces.made(root / "tiny.json", 0.02),
            "56": traces.big(root, 56),
            "200": traces.big(root, 200),
        }
        for size, file in files.items():
            place = root / size / "rank0"
            place.mkdir(parents=True)
            file.rename(place / "trace.json")
            files[size] = place / "trace.json"
        for command in COMMANDS:
            show(command, files, root / "out")


def show(command: str, files: dict[str, Path], out: Path) -> None:
    """The largest size and those with a bar; a and b, of the line through all three, tell the others."""
    costs = side_by_side(ROUNDS, *(partial(run, command, file, out / size) for size, file in files.items()))
    megabytes = {size: file.stat().st_size / 1e6 for size, file in files.items()}
    a, b = line_of({megabytes[size]: one.cpu_s for size, one in zip(files, costs, strict=True)})
    for size, one in zip(files, costs, strict=True):
        bar = BARS_S.get((command, size))
        if bar is None and size != "200":
            continue
        limit, met = at_most(one.cpu_s, bar, "s") if bar else ("", None)
        measured(
            Row(
                f"`{command}`",
                size="tiny" if size == "tiny" else f"{megabytes[size]:.0f} MB",
                cost=f"{one.cpu_s:.2f} CPU s",
                memory_mb=one.peak_mb,
                start_s=a,
                s_per_mb=b,
                limit=limit,
                met=met,
            )
        )


def run(command: str, file: Path, out: Path) -> Cost:
    """Exit code 1 is an answer: a repeated trace is not complete."""
    again = command.endswith("second look")
    if not again:
        shutil.rmtree(out, ignore_errors=True)  # with it goes the cache
    words = [word.format(file=file, folder=file.parents[1], out=out) for word in COMMANDS[command].split()]
    if again and not out.exists():
        cost(RUN, *words, codes=(0, 1))
    return cost(RUN, *words, codes=(0, 1))
