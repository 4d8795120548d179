"""All ranks in one file of Perfetto's own format."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from lab.errors import LabError
from lab.recordings.capture import Capture
from lab.recordings.merge.output import Merged, packed
from lab.recordings.merge.pftrace.rank import RankWriter


def merge_pftrace(
    traces: Sequence[tuple[int | None, Path]],
    target: Path,
    *,
    load: Callable[[Path], Capture],
    offsets_ns: Mapping[int, int] | None = None,
    cpu_ops: bool = True,
) -> Merged:
    """Merge `traces`, pairs of (rank as the path says or None, file), into the gzip file `target`.

    load reads one trace; one rank is in memory at a time. Otherwise as `lab.recordings.merge.merge_json`.
    """
    problems: list[str] = []
    loaded = _loaded(traces, load, problems)
    first = next(loaded, None)
    if first is None:
        return Merged(None, (), (), 0, {}, {}, tuple(problems))
    offsets_ns = offsets_ns or {}
    written, world_size, ranks = 0, 0, []
    with packed(target) as file:
        for rank, trace in itertools.chain([first], loaded):
            shift_ns = offsets_ns.get(rank, 0)
            written += RankWriter(trace, rank, shift_ns, file).write(cpu_ops=cpu_ops)
            world_size = max(world_size, trace.meta.world_size or 0)
            ranks.append(rank)
    missing = tuple(rank for rank in range(world_size) if rank not in ranks)
    shifts = {rank: offsets_ns.get(rank, 0) for rank in ranks}
    return Merged(target, tuple(ranks), missing, written, {}, shifts, tuple(problems))


def _loaded(
    traces: Sequence[tuple[int | None, Path]], load: Callable[[Path], Capture], problems: list[str]
) -> Iterator[tuple[int, Capture]]:
    """The readable traces with their ranks, each rank once; a sentence in `problems` for the others."""
    seen: set[int] = set()
    for named, path in traces:
        try:
            trace = load(path)
        except LabError as error:
            problems.append(f"left out: {error.problem} ({error.location})")
            continue
        rank = named if trace.meta.rank is None else trace.meta.rank
        if rank is None:
            rank = max(seen, default=-1) + 1
            problems.append(f"rank unknown, shown as rank {rank} ({path})")
        if rank in seen:
            problems.append(f"left out: another trace is of rank {rank}, too ({path})")
            continue
        seen.add(rank)
        yield rank, trace
