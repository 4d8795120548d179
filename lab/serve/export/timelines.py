"""Write timelines for Perfetto and Chrome: all ranks of a step on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.core.words import ranks_text
from lab.errors import BadDataError, LabError
from lab.recordings.capture import Capture
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import holes
from lab.recordings.load import format_of, load_capture
from lab.recordings.merge import merge_captures, merge_json
from lab.recordings.pairing import pair_collectives
from lab.recordings.processes import process_captures
from lab.recordings.views.collectives import collective_instances

LEFT_OUT, LACKS, ABSENT = "left out:", "missing from the recording", "no recording of"
MISSING = (LEFT_OUT, LACKS, ABSENT)  # prefixes of notes that make an export incomplete


@dataclass(frozen=True)
class Ranks:
    """Traces by rank, what to add to each one's times (ns), and sentences about what was left out."""

    traces: dict[int, Capture]
    offsets_ns: dict[int, int]
    notes: list[str]


def write_perfetto(paths: Sequence[Path], target: Path) -> list[str]:
    """All ranks of these recordings, of any profiler, in one gzipped JSON; returns what is not in it."""
    ranks = read_ranks(paths)
    merge_captures(ranks.traces, target, offsets_ns=ranks.offsets_ns)
    return _once(ranks.notes)


def write_chrome(paths: Sequence[Path], target: Path) -> list[str]:
    """The same from the files of torch.profiler, with every event that it wrote.

    Raises BadDataError for other profilers' recordings: their events are not in that format.
    """
    foreign = next((path for path in paths if format_of(path).name != "kineto"), None)
    if foreign:
        raise BadDataError(
            "chrome is for traces of torch.profiler",
            location=foreign,
            fix="--to perfetto takes any recording",
        )
    ranks = read_ranks(paths)
    merged = merge_json([(None, path) for path in paths], target, offsets_ns=ranks.offsets_ns)
    dropped = [f"{count} events not written: {why}" for why, count in merged.dropped.items()]
    return _once([*ranks.notes, *merged.problems, *dropped])


def _once(notes: list[str]) -> list[str]:
    return list(dict.fromkeys(notes))


def read_ranks(paths: Sequence[Path]) -> Ranks:
    """Read every process of these recordings. Raises what the reader raises for a single one.

    One of several that cannot be read is a note; BadDataError where none can.
    """
    traces: dict[int, Capture] = {}
    notes: list[str] = []
    for path in paths:
        try:
            processes = process_captures(load_capture(path))
        except LabError as error:
            if len(paths) == 1:
                raise
            notes.append(f"left out: {path.name}: {error.problem}")
            continue
        for trace in processes:
            rank = trace.meta.rank
            if rank is None:
                rank = max(traces, default=-1) + 1
                if len(paths) > 1 or len(processes) > 1:
                    notes.append(f"{path.name} names no rank: called rank {rank}")
            if rank in traces:
                notes.append(f"left out: {path.name}: another recording is of rank {rank}, too")
                continue
            traces[rank] = trace
            notes += notes_of(path, trace)
    if not traces:
        raise BadDataError(
            "none of the recordings can be read", location=paths[0].parent, fix="; ".join(notes[:3])
        )
    missing = _missing(traces)
    if missing:
        notes.append(f"{ABSENT} {ranks_text(missing, limit=16)}")
    return Ranks(traces, _offsets(traces), notes)


def notes_of(path: Path, recording: Capture) -> list[str]:
    """Sentences on what its reader met in a recording, and on what is missing from it."""
    missing = sentences(holes(recording.lacks))
    return [f"{path.name}: {text}" for text in recording.problems] + [
        f"{LACKS} {path.name}: {text}" for text in missing
    ]


def _missing(traces: dict[int, Capture]) -> list[int]:
    size = max((trace.meta.world_size or 0 for trace in traces.values()), default=0)
    return [rank for rank in range(min(size, 1 << 16)) if rank not in traces]


def _offsets(traces: dict[int, Capture]) -> dict[int, int]:
    if len(traces) < 2:
        return {}
    collectives = {rank: collective_instances(trace) for rank, trace in traces.items()}
    return dict(pair_collectives(collectives).offsets_ns)
