"""Which part of a recording a command is about: a process, ranges, steps, a window of time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lab.errors import UsageError
from lab.terminal.options import with_options

_UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(ns|us|ms|s)?")
_NUMBERS = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?")
MAX_STEPS = 1_000_000


PART = with_options(
    click.option(
        "--range", "range_name", metavar="NAME", help="Only what these ranges launched. NAME or REGEX."
    ),
    click.option("--step", metavar="N,N-N", help="Only these measured steps, by the number in their name."),
    click.option(
        "--from",
        "from_time",
        metavar="TIME",
        help="Only what begins at or after TIME (12.5ms, 3s) of the recording.",
    ),
    click.option("--to", "to_time", metavar="TIME", help="Only what begins before TIME."),
    click.option("--process", metavar="PID", help="Only this process of several."),
)
PHASE = click.option(
    "--phase",
    "phases",
    multiple=True,
    metavar="[PHASE=]REGEX",
    help="Further names of ranges that are phases, and own launches of other threads; repeatable.",
)


@dataclass(frozen=True)
class PartOptions:
    """The flags as they were typed."""

    range_name: str | None = None
    step: str | None = None
    from_time: str | None = None
    to_time: str | None = None
    process: str | None = None


def part_options(flags: dict[str, Any]) -> PartOptions:
    """Take the flags of PART out of all flags. Raises UsageError for a time or step that cannot be parsed."""
    part = PartOptions(**{name: flags.pop(name, None) for name in PartOptions.__dataclass_fields__})
    for text, option in ((part.from_time, "--from"), (part.to_time, "--to")):
        if text is not None:
            parse_time_ns(text, option)
    if part.step:
        parse_steps(part.step)
    return part


def parse_time_ns(text: str, option: str) -> int:
    """`12.5ms`, `300 us`, `3s`, `7` (ms) as ns. Raises UsageError."""
    match = _TIME.fullmatch(text.strip())
    if match is None or len(text) > 40:
        raise UsageError(
            f"{option}: {text[:40]!r} is not a time", fix="write 12.5ms, 300us, 2s; ms by default"
        )
    from decimal import Decimal

    # A float would miss some nanoseconds.
    return int(Decimal(match[1]) * _UNITS_NS[match[2] or "ms"])


def parse_steps(text: str) -> frozenset[int]:
    """`3,7-9` as {3, 7, 8, 9}. Raises UsageError."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = _NUMBERS.fullmatch(part.strip())
        start, end = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not start <= end < start + MAX_STEPS:
            raise UsageError(
                f"--step: {part.strip()[:40]!r} is not a step or a span of steps", fix="write 3,7-9"
            )
        numbers.update(range(start, end + 1))
    return frozenset(numbers)


def phase_names(options: Sequence[str], *, named: bool = False) -> Any:
    """lab's names of phases and those of --phase, each `REGEX` or `backward=REGEX`.

    named: each needs its phase, which the expression's first letter also tells. Raises UsageError.
    """
    from lab.recordings.phase_names import BACKWARD, FORWARD, OPTIMIZER
    from lab.recordings.projection import PhaseNames

    phases = (FORWARD, BACKWARD, OPTIMIZER)
    patterns = []
    for text in options:
        phase, equals, pattern = text.partition("=")
        if not equals or phase not in phases:
            phase, pattern = "", text
        if named and not phase:
            phase = next((p for p in phases if re.match(rf"\W*{p[0]}", pattern, re.IGNORECASE)), "")
            if not phase:
                raise UsageError(f"--phase {text!r}: which phase is it?", fix=f"write backward={text}")
        try:
            patterns.append((phase, re.compile(pattern)))
        except re.error as error:
            raise UsageError(f"--phase is not a valid regular expression: {error}") from error
    return PhaseNames(tuple(patterns))


def projections(
    recording: Any,
    attribution: str,
    names: Any,
    part: PartOptions,
    *,
    together: bool = False,
    captures: Sequence[Path] | None = None,
) -> list[tuple[int, Any]]:
    """`project_part` for the options as typed; -> (index of the process, its projection) for each process.

    recording: a capture, or the path of one.
    """
    from lab.recordings.load import load_capture
    from lab.recordings.processes import with_processes
    from lab.recordings.projection import Wanted, first_ns, project_part

    capture = with_processes(load_capture(recording) if isinstance(recording, Path) else recording)
    start_ns = first_ns(capture)
    from_ns = None if part.from_time is None else start_ns + parse_time_ns(part.from_time, "--from")
    to_ns = None if part.to_time is None else start_ns + parse_time_ns(part.to_time, "--to")
    if from_ns is not None and to_ns is not None and to_ns <= from_ns:
        raise UsageError("--to is not after --from", fix="give the earlier time to --from")
    wanted = Wanted(part.range_name, parse_steps(part.step) if part.step else None, from_ns, to_ns)
    return project_part(
        capture,
        attribution,
        names.pattern,
        wanted,
        pid=part.process,
        together=together,
        graph_captures=captures,
    )
