"""All ranks in one file of Perfetto's own format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lab.recordings.capture import Capture
from lab.recordings.merge.output import Merged, Ranks, packed
from lab.recordings.merge.pftrace.rank import RankWriter


def merge_pftrace(
    traces: Sequence[tuple[int | None, Path]],
    target: Path,
    *,
    load: Callable[[Path], Capture],
    offsets_ns: Mapping[int, int] | None = None,
    cpu_ops: bool = True,
) -> Merged:
    """Merge `traces`, pairs of (rank as the path says or None, file), into `target`, gzip if it ends in .gz.

    load reads one trace; one rank is in memory at a time. Otherwise as `lab.recordings.merge.merge_json`.
    """
    ranks = Ranks(traces, load, lambda trace: trace.meta.rank)
    written, world_size = 0, 0
    shifts: dict[int, int] = {}
    loaded = iter(ranks)
    first_loaded = next(loaded, None)
    if first_loaded is None:
        return Merged(None, (), (), 0, {}, {}, tuple(ranks.problems))
    with packed(target) as file:
        for rank, _, trace in (first_loaded, *loaded):
            shifts[rank] = (offsets_ns or {}).get(rank, 0)
            written += RankWriter(trace, rank, shifts[rank], file).write(cpu_ops=cpu_ops)
            world_size = max(world_size, trace.meta.world_size or 0)
    missing = tuple(rank for rank in range(world_size) if rank not in shifts)
    return Merged(target, tuple(shifts), missing, written, {}, shifts, tuple(ranks.problems))
