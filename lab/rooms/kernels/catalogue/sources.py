"""From the arguments of a command to the traces it reads and the folder it writes to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lab.errors import MissingError, UsageError, not_here
from lab.rooms.kernels.trails import Trail, trails


def home_of(traces: Sequence[Path]) -> Path:
    """Where files go: into a run of lab, or into experiments/ for traces that lab did not make."""
    from lab.core.run import Run
    from lab.core.run import home_of as home_of_folder

    if len(traces) == 1 and (Run.is_run(traces[0]) or traces[0].is_dir()):
        return home_of_folder(traces[0])
    stem = re.sub(r"(\.pt\.trace)?\.(json|sqlite|db|rpd|pftrace|pb|nsys-rep)(\.gz)?\Z", "", traces[0].name)
    return Path("experiments") / f"{stem}_analysis"


def trails_of(traces: Sequence[Path]) -> list[Trail]:
    """One trail per rank: those of a run or folder; bare files get the rank in their name, or their position.

    Raises MissingError for a missing file, UsageError for a file that is named twice: its launches would
    count twice.
    """
    from lab.recordings.load import is_recording

    for path in traces:
        if not path.exists():
            raise not_here("no such run or trace", path)
    if len(traces) == 1 and traces[0].is_dir():
        of_folder = trails(traces[0])
        if not of_folder and is_recording(traces[0]):
            return [Trail(rank=0, trace=traces[0])]
        if not of_folder:
            raise MissingError(
                "no trace_rank*.json in this folder, which is not a recording itself",
                location=traces[0],
                fix="name the recordings themselves, one per rank",
            )
        return of_folder
    if any(path.is_dir() for path in traces):
        raise UsageError(
            "several folders, or folders beside trace files", fix="name one run, or only trace files"
        )
    if len({path.resolve() for path in traces}) < len(traces):
        raise UsageError("a trace is named twice", fix="name each rank's trace once")
    named = [re.search(r"rank[_-]?(\d+)", path.name) for path in traces]
    ranks = [int(match[1]) if match else index for index, match in enumerate(named)]
    if len(set(ranks)) < len(ranks):
        ranks = list(range(len(traces)))
    beside = {trail.trace.resolve(): trail for path in traces for trail in trails(path.parent)}
    return [
        beside.get(path.resolve()) or Trail(rank=rank, trace=path)
        for rank, path in zip(ranks, traces, strict=True)
    ]
