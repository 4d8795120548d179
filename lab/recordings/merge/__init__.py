"""All ranks of one run on one timeline for Perfetto, in the "Trace Event Format" of torch.profiler.

Written is what lab reads of any profiler's recording, with the names of arguments that Kineto uses
(`libkineto/src/output_json.cpp`), so that what reads its traces reads the merged one, too.

Per rank r: GPUs have pids from 1000r on, the CPU side from 1000r + 500; thread numbers stay. Flows get new
ids and are written only if both ends are there; correlation and External id are shifted alike, so that no
arrow and no id crosses ranks. Times are moved onto one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.core.words import first_few
from lab.errors import BadDataError, LabError
from lab.recordings.capture import Capture
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import holes
from lab.recordings.load import load_capture
from lab.recordings.merge.write import merge_captures
from lab.recordings.pairing import pair_collectives
from lab.recordings.processes import process_captures
from lab.recordings.views.collectives import collective_instances

__all__ = ["Ranks", "merge_captures", "read_ranks"]


@dataclass(frozen=True)
class Ranks:
    """Recordings by rank, and what to add to each one's times (ns), by the ends of its collectives.

    left_out and unnamed are sentences about recordings that are not in it, or whose rank is a guess; torn:
    what is missing from a recording; odd: what its reader met; absent: ranks of the job without a recording.
    """

    traces: dict[int, Capture]
    offsets_ns: dict[int, int]
    left_out: tuple[str, ...]
    unnamed: tuple[str, ...]
    torn: tuple[str, ...]
    odd: tuple[str, ...]
    absent: tuple[int, ...]


def read_ranks(
    recordings: Sequence[tuple[int | None, Path]],
    *,
    read: Callable[..., Capture] = load_capture,
    salvage: bool = False,
) -> Ranks:
    """Read every process of `recordings`, pairs of (rank as the path says or None, file).

    The rank that a recording says takes precedence over that of its path; each rank is there once. Raises
    what the reader raises for a single recording, BadDataError where none of several can be read.
    """
    traces: dict[int, Capture] = {}
    left_out, unnamed, torn, odd = list[str](), list[str](), list[str](), list[str]()
    for rank_in_path, path in recordings:
        try:
            processes = process_captures(read(path, salvage=salvage))
        except LabError as error:
            if len(recordings) == 1:
                raise
            left_out.append(f"{path.name}: {error.problem}")
            continue
        for trace in processes:
            rank = rank_in_path if trace.meta.rank is None else trace.meta.rank
            if rank is None:
                rank = max(traces, default=-1) + 1
                if len(recordings) > 1 or len(processes) > 1:
                    unnamed.append(f"{path.name} names no rank: called rank {rank}")
            if rank in traces:
                left_out.append(f"{path.name}: another recording is of rank {rank}, too")
                continue
            traces[rank] = trace
            odd += [f"{path.name}: {text}" for text in trace.problems]
            torn += [f"{path.name}: {text}" for text in sentences(holes(trace.lacks))]
    if not traces:
        location = recordings[0][1].parent if recordings else None
        raise BadDataError(
            "none of the recordings can be read", location=location, fix=first_few(left_out, 3, between="; ")
        )
    traces = dict(sorted(traces.items()))
    size = max((trace.meta.world_size or 0 for trace in traces.values()), default=0)
    absent = tuple(rank for rank in range(min(size, 1 << 16)) if rank not in traces)
    offsets_ns = _offsets_ns(traces) if len(traces) > 1 else {}
    return Ranks(traces, offsets_ns, tuple(left_out), tuple(unnamed), tuple(torn), tuple(odd), absent)


def _offsets_ns(traces: dict[int, Capture]) -> dict[int, int]:
    collectives = {rank: collective_instances(trace) for rank, trace in traces.items()}
    return dict(pair_collectives(collectives).offsets_ns)
