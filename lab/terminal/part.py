"""Which part of a recording a command is about: a process, ranges, steps, a window of time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from lab.errors import MissingError, UsageError
from lab.terminal.click_types import with_options

_UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(ns|us|ms|s)?")
_NUMBERS = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?")
MOST_STEPS = 1_000_000


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

    @property
    def is_window(self) -> bool:
        """Whether it is cut by time, which may cut a step."""
        return self.from_time is not None or self.to_time is not None


def check_part(part: PartOptions) -> None:
    """Raises UsageError for times and steps that are none, before anything is read."""
    for text, option in ((part.from_time, "--from"), (part.to_time, "--to")):
        if text is not None:
            parse_time_ns(text, option)
    if part.step:
        parse_steps(part.step)


def part_options(flags: dict[str, Any]) -> tuple[PartOptions, dict[str, Any]]:
    """The flags of PART, and the others."""
    mine = {name: flags.pop(name) for name in PartOptions.__dataclass_fields__}
    return PartOptions(**mine), flags


def parse_time_ns(text: str, option: str) -> int:
    """`12.5ms`, `300 us`, `3s`, `7` (ms) as ns. Raises UsageError."""
    found = _TIME.fullmatch(text.strip())
    if found is None or len(text) > 40:
        raise UsageError(
            f"{option}: {text[:40]!r} is not a time", fix="write 12.5ms, 300us, 2s; ms by default"
        )
    from decimal import Decimal

    return int(Decimal(found[1]) * _UNITS_NS[found[2] or "ms"])


def parse_steps(text: str) -> frozenset[int]:
    """`3,7-9` as {3, 7, 8, 9}. Raises UsageError."""
    numbers: set[int] = set()
    for part in text.split(","):
        found = _NUMBERS.fullmatch(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last < first + MOST_STEPS:
            raise UsageError(
                f"--step: {part.strip()[:40]!r} is not a step or a span of steps", fix="write 3,7-9"
            )
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def phase_names(given: Sequence[str], *, named: bool = False) -> Any:
    """lab's names of phases and the given ones, each `REGEX` or `backward=REGEX`.

    named: each needs its phase, which the first letter of the expression may tell. Raises UsageError.
    """
    from lab.recordings.phase_names import BACKWARD, FORWARD, OPTIMIZER
    from lab.recordings.projection import PhaseNames

    known = (FORWARD, BACKWARD, OPTIMIZER)
    own = []
    for text in given:
        before, equals, after = text.partition("=")
        phase, pattern = (before, after) if equals and before in known else ("", text)
        if named and not phase:
            phase = next((one for one in known if re.match(rf"\W*{one[0]}", pattern, re.IGNORECASE)), "")
            if not phase:
                raise UsageError(f"--phase {text!r}: which phase is it?", fix=f"write backward={text}")
        try:
            own.append((phase, re.compile(pattern)))
        except re.error as error:
            raise UsageError(f"--phase is not a valid regular expression: {error}") from error
    return PhaseNames(tuple(own))


def projections(
    file: Path,
    attribution: str,
    names: Any,
    part: PartOptions,
    *,
    whole: bool = False,
    captures: Sequence[Path] | None = None,
) -> list[tuple[int, Any]]:
    """(index of the process in the recording, its projection) for each process that was asked for.

    whole: all processes in one projection, unless one is asked for. captures: recordings that name the
    operators of graph replays; None leaves replays as they were recorded, as the reports of nsys do.
    Raises MissingError where the recording has no such process, range or step, or nothing in the window.
    """
    from lab.recordings.load import load_capture

    capture = load_capture(file)
    return projections_of(capture, attribution, names, part, whole=whole, captures=captures)


def projections_of(
    capture: Any,
    attribution: str,
    names: Any,
    part: PartOptions,
    *,
    whole: bool = False,
    captures: Sequence[Path] | None = None,
) -> list[tuple[int, Any]]:
    from lab.recordings.processes import process_label, single_processes, with_processes
    from lab.recordings.projection import Wanted, first_ns, project, select

    capture = with_processes(capture)
    start_ns = first_ns(capture)

    def at(text: str | None, option: str) -> int | None:
        return None if text is None else start_ns + parse_time_ns(text, option)

    wanted = Wanted(
        range=part.range_name,
        steps=parse_steps(part.step) if part.step else None,
        start_ns=at(part.from_time, "--from"),
        end_ns=at(part.to_time, "--to"),
    )
    if wanted.start_ns is not None and wanted.end_ns is not None and wanted.end_ns <= wanted.start_ns:
        raise UsageError("--to is not after --from", fix="give the earlier time to --from")
    singles = list((single_processes(capture) if part.process or not whole else {0: capture}).items())
    if part.process:
        singles = [(i, one) for i, one in singles if str(one.processes[0].pid) == part.process]
        if not singles:
            pids = ", ".join(str(one.pid) for one in capture.processes if one.pid is not None) or "none"
            raise MissingError(
                f"no process {part.process[:20]}; the recording has {pids[:300]}", where=capture.source
            )
    found: list[tuple[int, Any]] = []
    origins = None
    errors: list[MissingError] = []
    without: list[str] = []
    for index, one in singles:
        try:
            if captures is not None:
                one, origins = with_origins(one, captures)
            projection = project(one, attribution, names.pattern, origins)
            found.append((index, select(projection, wanted, names.pattern)))
        except MissingError as error:
            errors.append(error)
            without.append(f"{process_label(one.processes[0], index)} is left out: {error.what}")
    if not found:
        raise errors[0]
    index, first = found[0]
    return [(index, replace(first, problems=[*first.problems, *without])), *found[1:]]


def with_origins(capture: Any, captures: Sequence[Path] = ()) -> tuple[Any, Any]:
    """A capture of one process, judged by the captures that its replays are of, and where these came from.

    None where no graph was replayed and no capture given.
    """
    from lab.recordings.graphs import load_sources, replays_graphs
    from lab.recordings.graphs.batches import executed_batches
    from lab.recordings.graphs.loss import RULE
    from lab.recordings.graphs.origins import origins_of

    if not captures and not replays_graphs(capture):
        return capture, None
    beside, notes = load_sources(captures, executed_batches(capture)) if captures else ([], [])
    origins = origins_of(capture, beside)
    lacks = (*(lack for lack in capture.lacks if lack.rule != RULE), *origins.lacks)
    return replace(capture, problems=[*capture.problems, *notes], lacks=lacks), origins
