"""`lab --help` and `lab gemm report --help` against importing click alone (bar: 10 ms more)."""

from __future__ import annotations

from functools import partial

from bench.measure import cost, side_by_side
from bench.table import Row, at_most, measured

HELP = "import sys; sys.argv = ['lab', *sys.argv[1:], '--help']; from lab.cli.main import main; main()"
ROUNDS = 15


def main() -> None:
    words: dict[str, tuple[str, ...]] = {"lab --help": (), "lab gemm report --help": ("gemm", "report")}
    programs = [partial(cost, "import click"), *(partial(cost, HELP, *one) for one in words.values())]
    click, *ours = side_by_side(ROUNDS, *programs)
    for name, found in zip(words, ours, strict=True):
        more_ms = 1e3 * (found.cpu_s - click.cpu_s)
        limit, met = at_most(more_ms, 10, "ms more") if name == "lab --help" else ("", None)
        measured(
            Row(
                f"`{name}`",
                cost=f"{1e3 * found.cpu_s:.0f} CPU ms",
                memory_mb=found.peak_mb,
                peer=f"import click {1e3 * click.cpu_s:.0f} CPU ms",
                ratio=click.cpu_s / found.cpu_s,
                limit=limit,
                met=met,
            )
        )
