"""`lab nan`: what can be asked of nixnan logs and of runs of this room, anywhere, without a GPU."""

from __future__ import annotations

import click

from lab.cli import LazyGroup

LAZY = {
    "analyze": (
        "lab.rooms.nan.analyze_cli:analyze",
        "Rank a run's experiments; verdicts, causes, and a page.",
    ),
    "parse": (
        "lab.rooms.nan.cli_sass:parse",
        "Read nixnan logs of any build: counts, integrity, kernels, causes.",
    ),
    "diff": ("lab.rooms.nan.cli_sass:diff", "Which sites differ between two logs, beyond the noise."),
}


@click.group("nan", cls=LazyGroup, lazy=LAZY)
def nan() -> None:
    """Where NaN and Inf are born: analyse a run, read nixnan's logs, compare two.

    The experiments themselves are `lab run nan ...` and `lab run nixnan ...`.
    """
