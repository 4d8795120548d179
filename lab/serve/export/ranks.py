"""The recordings of a run, step by step, and the traces of one step's ranks on one clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.core.words import ranks_text
from lab.errors import BadDataError, LabError
from lab.recordings.as_trace import traces_of
from lab.recordings.cache import load_trace
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import holes
from lab.recordings.load import kind_of, look, read_found
from lab.recordings.pairing import pair_collectives
from lab.recordings.tables import Trace
from lab.recordings.views.collectives import collective_instances
from lab.serve.walk import is_recording

LEFT_OUT, LACKS, ABSENT = "left out:", "missing from the recording", "no recording of"
MISSING = (LEFT_OUT, LACKS, ABSENT)  # how sentences begin that say an export is not complete


@dataclass(frozen=True)
class Ranks:
    """Traces by rank, what to add to each one's times (ns), and sentences about what was left out."""

    traces: dict[int, Trace]
    offsets_ns: dict[int, int]
    notes: list[str]


def recordings_below(run: Path) -> dict[str, list[Path]]:
    """The recordings of a run by the step's folder they belong to; a recording itself is one of its own."""
    if run.is_file():
        return {run.name.split(".", 1)[0] or run.name: [run]}
    found: dict[str, list[Path]] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        hidden = any(part.startswith(".") for part in name.split("/"))
        if not hidden and is_recording(name) and path.is_file() and not path.is_symlink():
            found.setdefault(group_of(name), []).append(path)
    return found


def group_of(name: str) -> str:
    """The folder above the ranks: `256thread/nccl_28channels` of `…/torch_profiler/rank0/trace.json`."""
    parts = name.split("/")
    ranked = (at for at, part in enumerate(parts[:-1]) if part.startswith("rank") or part == "torch_profiler")
    return "/".join(parts[: next(ranked, len(parts) - 1)]) or "."


def read_ranks(paths: Sequence[Path], progress: Callable[[str], None] = lambda _: None) -> Ranks:
    """Every process of these recordings. Raises what the reader raises for a single one.

    One of several that cannot be read is a note; BadDataError where none can.
    """
    traces: dict[int, Trace] = {}
    notes: list[str] = []
    for path in paths:
        progress(f"reading {path.name}")
        try:
            found = _traces(path)
        except LabError as error:
            if len(paths) == 1:
                raise
            notes.append(f"left out: {path.name}: {error.what}")
            continue
        for trace in found:
            rank = trace.meta.rank
            if rank is None:
                rank = max(traces, default=-1) + 1
                if len(paths) > 1 or len(found) > 1:
                    notes.append(f"{path.name} names no rank: called rank {rank}")
            if rank in traces:
                notes.append(f"left out: {path.name}: another recording is of rank {rank}, too")
                continue
            traces[rank] = trace
            notes += [f"{path.name}: {text}" for text in trace.problems]
            notes += [f"{LACKS} {path.name}: {text}" for text in sentences(holes(trace.lacks))]
    if not traces:
        raise BadDataError(
            "none of the recordings can be read", where=paths[0].parent, fix="; ".join(notes[:3])
        )
    missing = _missing(traces)
    if missing:
        notes.append(f"{ABSENT} {ranks_text(missing, limit=16)}")
    return Ranks(traces, _offsets(traces), notes)


def _traces(path: Path) -> list[Trace]:
    with look(path) as found:
        if kind_of(found).name != "kineto":
            return traces_of(read_found(found))
    return [load_trace(path)]


def _missing(traces: dict[int, Trace]) -> list[int]:
    size = max((trace.meta.world_size or 0 for trace in traces.values()), default=0)
    return [rank for rank in range(min(size, 1 << 16)) if rank not in traces]


def _offsets(traces: dict[int, Trace]) -> dict[int, int]:
    if len(traces) < 2:
        return {}
    return dict(
        pair_collectives({rank: collective_instances(one) for rank, one in traces.items()}).offsets_ns
    )
