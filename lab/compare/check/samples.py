"""The samples of `lab check`: one per process, of one recording per process or of its own step times.

Neither the steps of one process nor its ranks are samples: they resemble, or wait for, each other. Of several
ranks of one run the slowest has its time, and the calls of all count.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from lab.compare.side import RANK, Key, read_works, recordings_at
from lab.compare.units import STEP, Units, as_a_rule, units
from lab.compare.whole import IDLE, OWN, SPAN, StepTimes
from lab.errors import BadDataError, MissingError

LOG = ".log"  # of a process, beside its recording
# A file of step times begins so; whatever else stands in it is not read.
_TIMES = re.compile(rb'\s*\{\s*"step_ms"\s*:\s*\[')
_START_BYTES = 4096
LEAST_BETWEEN_NS = 1000.0
_MOST_BYTES = 64 << 20
_TIMES_FIX = 'write {"step_ms": [12.1, 12.3]}, one time per step'


@dataclass(frozen=True)
class Process:
    """One process; counts and signatures are per step. empty: how many more steps launched nothing. In no
    total are between_ns, of what is launched between steps, and period_ns, from one step's GPU work to the
    next's."""

    steps_ns: StepTimes
    counts: dict[str, float] = field(default_factory=dict)
    signatures_ns: dict[Key, float] = field(default_factory=dict)
    empty: int = 0
    between_ns: float = 0.0
    period_ns: float = 0.0

    @property
    def steps(self) -> int:
        return min(map(len, self.steps_ns.values()))


class _StepTimes(msgspec.Struct):
    step_ms: list[float]


def processes(folder: Path) -> list[Process]:
    """The processes at a path: one recording each, or its own step times as `{"step_ms": [12.1, ...]}`.

    Raises MissingError for an empty folder or a process that left only its log, BadDataError for a recording
    that cannot be a sample: without marked steps, without GPU work in them, or with some of it missing.
    """
    files = recordings_at(folder)
    if not files:
        raise MissingError("no recording in this folder", location=folder, fix="one recording per process")
    if folder.is_dir():
        _raise_for_lost(folder, files)
    own_times: list[Process] = []
    runs: dict[str, list[Units]] = defaultdict(list)
    for file in files:
        if process := _own_times(file):
            own_times.append(process)
        else:
            # Paths of the ranks of one run differ in nothing else.
            runs[RANK.sub("", str(file.relative_to(folder)))] += _ranks_of(file)
    lone_ranks = {ranks[0].work.trace.meta.rank for ranks in runs.values() if len(ranks) == 1}
    known_ranks = sorted(rank for rank in lone_ranks if rank is not None)
    if len(known_ranks) > 1:  # ranks are not samples
        raise BadDataError(
            f"recordings of ranks {', '.join(map(str, known_ranks))}, and nothing says which belong to one "
            "run",
            location=folder,
            fix="name them RUN_rank0.json, RUN_rank1.json, or rank0/ and rank1/ in a folder per run",
        )
    return [*own_times, *map(_process, runs.values())]


def _raise_for_lost(folder: Path, files: Sequence[Path]) -> None:
    """Raises MissingError where a process left its log alone: those that remain are not a fair sample."""
    recorded = {(file.parent, file.name.split(".")[0]) for file in files}
    logs = sorted(folder.rglob(f"*{LOG}"))
    lost = [log for log in logs if (log.parent, log.name.split(".")[0]) not in recorded]
    if lost and len(lost) < len(logs):
        raise MissingError(
            f"{len(lost)} of the processes here left a log and no recording",
            location=lost[0],
            fix="see why it failed; those that remain are not a fair sample",
        )


def _ranks_of(file: Path) -> list[Units]:
    """The steps of each rank of a recording."""
    works = read_works(file)
    for work in works:
        if len(work.steps_ns) and work.torn:
            problem = f"no sample, because GPU work is missing: {work.torn[0]}"
            raise BadDataError(problem, location=file, fix="record it again")
    return [units(work, STEP) for work in works]


def _process(ranks: Sequence[Units]) -> Process:
    signatures: dict[Key, float] = {}
    counts: dict[str, float] = {}
    for rank in ranks:
        for key, (n, ns) in rank.sums.items():
            # A step waits for its slowest rank, so each signature counts where it takes longest.
            signatures[key] = max(signatures.get(key, 0.0), ns)
            counts[key[3]] = counts.get(key[3], 0.0) + n
        for name, n in rank.calls.items():
            counts[name] = counts.get(name, 0.0) + n
    times = [rank.totals_ns for rank in ranks]
    # Span and idle time are those of the slowest rank; the longest kernel time may be another's.
    slowest = max(times, key=lambda steps: float(steps[SPAN].mean()))
    return Process(
        {
            name: max((steps[name] for steps in times), key=np.mean) if name not in (SPAN, IDLE) else values
            for name, values in slowest.items()
        },
        counts,
        signatures,
        empty=max(rank.empty for rank in ranks),
        between_ns=max(rank.between_ns for rank in ranks),
        period_ns=max(as_a_rule(rank.period_ns) if len(rank.period_ns) else 0.0 for rank in ranks),
    )


def _own_times(file: Path) -> Process | None:
    """The process of a file of step times; None if it is another kind of file."""
    if not file.is_file() or file.suffix != ".json":
        return None
    with file.open("rb") as opened:
        if not _TIMES.match(opened.read(_START_BYTES)):
            return None
    if file.stat().st_size > _MOST_BYTES:
        raise BadDataError(f"step times of more than {_MOST_BYTES >> 20} MiB", location=file)
    try:
        times = np.array(msgspec.json.decode(file.read_bytes(), type=_StepTimes).step_ms, dtype=float)
    except msgspec.DecodeError as error:
        raise BadDataError(f"not step times: {error}", location=file, fix=_TIMES_FIX) from error
    if not len(times) or not (np.isfinite(times).all() and (times > 0).all()):
        raise BadDataError("step times must be positive, and at least one", location=file, fix=_TIMES_FIX)
    return Process({OWN: times * 1e6})


def doubts(base: Sequence[Process], head: Sequence[Process], allowed: float) -> list[str]:
    """Why these processes cannot exclude a slowdown beyond `allowed`, whatever their times."""
    reasons = []
    if len(base) != len(head):
        reasons.append(
            f"BASE has {len(base)} and HEAD {len(head)} processes: if some failed, the rest is not fair"
        )
    numbers = [sorted({process.steps for process in side}) for side in (base, head)]
    if numbers[0] != numbers[1] or len(numbers[0]) > 1:
        base_steps, head_steps = (
            " or ".join(map(str, side)) if len(side) < 4 else f"{side[0]} to {side[-1]}" for side in numbers
        )
        reasons.append(
            f"processes have different numbers of steps: {base_steps} on BASE, {head_steps} on HEAD"
        )
    elif numbers[0] == [1]:
        reasons.append("one step per process: it may be the warm-up, and what a step is like is not known")
    if copies := _copies([*base, *head]):
        reasons.append(
            f"{copies} processes have the times of another to the last digit: copies of one recording, "
            "or a clock too coarse to tell them apart"
        )
    for name, side in (("BASE", base), ("HEAD", head)):
        if empty := sum(process.empty > 0 for process in side):
            reasons.append(f"{name}: {empty} of {len(side)} processes have steps that launched no GPU work")
    return [*reasons, *_moved_out(base, head, allowed)]


def _moved_out(base: Sequence[Process], head: Sequence[Process], allowed: float) -> list[str]:
    """GPU work between the steps, where every process of one side has more of it than those of the other, and
    by more than the slowdown that is to be excluded."""
    base_ns, head_ns = ([process.between_ns for process in side] for side in (base, head))
    if min(head_ns) <= max(base_ns) and min(base_ns) <= max(head_ns):
        return []
    change_ns = float(np.median(head_ns) - np.median(base_ns))
    step_ns = float(np.median([process.steps_ns[SPAN].mean() for process in base]))
    if abs(change_ns) <= max(allowed * step_ns, LEAST_BETWEEN_NS):
        return []
    times = " and ".join(
        f"{np.median(side) / 1000:,.1f} µs on {name}" for name, side in (("BASE", base_ns), ("HEAD", head_ns))
    )
    return [f"GPU work is launched between steps, of which no metric is: {times}, per pair of steps"]


def _copies(sample: Sequence[Process]) -> int:
    """Processes with the same times, step by step and signature by signature, as an earlier one."""
    contents = {
        (*(times.tobytes() for times in process.steps_ns.values()), *process.signatures_ns.items())
        for process in sample
    }
    return len(sample) - len(contents)
