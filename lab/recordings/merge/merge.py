"""All ranks in one JSON file: the events of each rank, then the properties of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.recordings.kineto.indices import loss_lines
from lab.recordings.merge.output import ENCODER, Merged, packed
from lab.recordings.merge.rank import Counters, RankEvents
from lab.recordings.merge.recordings import CUT, Recording, absent, recordings


def merge_json(
    traces: Sequence[tuple[int | None, Path]],
    target: Path,
    *,
    offsets_ns: Mapping[int, int] | None = None,
    cpu_ops: bool = True,
    salvage: bool = False,
    with_prefix: bool = False,
) -> Merged:
    """Merge `traces`, pairs of (rank as the path says or None, file), into `target`, gzip if it ends in .gz.

    with_prefix: every event's name begins with its rank, `[R3] `, as the original sweep writes it.
    offsets_ns (rank -> ns) is added to a rank's times beyond its base. cpu_ops=False leaves out CPU
    operators. A trace that cannot be read is left out and named in problems; nothing is written if none can
    be read. The same input gives the same bytes. Raises StorageError where `target` cannot be written.
    """
    ranks, problems = recordings(traces, salvage=salvage)
    if not ranks:
        return Merged(None, (), (), 0, {}, {}, tuple(problems))
    base_ns = min(recording.base_ns for recording in ranks)
    shifts = {
        recording.rank: recording.base_ns - base_ns + (offsets_ns or {}).get(recording.rank, 0)
        for recording in ranks
    }
    numbers = Counters()
    with packed(target) as file:
        file.write(b'{"traceEvents":[')
        for recording in ranks:
            RankEvents(
                recording,
                shifts[recording.rank],
                numbers,
                cpu_ops=cpu_ops,
                salvage=salvage,
                with_prefix=with_prefix,
            ).write(file)
        file.write(b"\n],\n" + ENCODER.encode(_document_frame(ranks, base_ns, shifts, numbers))[1:] + b"\n")
    return Merged(
        path=target,
        ranks=tuple(recording.rank for recording in ranks),
        missing=absent(ranks),
        written=numbers.written,
        dropped=dict(numbers.dropped),
        offsets_ns=shifts,
        problems=(*problems, *numbers.oddities()),
    )


def _document_frame(
    ranks: Sequence[Recording], base_ns: int, shifts: Mapping[int, int], numbers: Counters
) -> dict[str, Any]:
    """The document around the events: properties of all ranks, and the offset of each."""
    frame = ranks[0].frame
    shared: dict[str, Any] = {
        key: frame[key] for key in ("schemaVersion", "deviceProperties") if key in frame
    }
    return {
        "displayTimeUnit": "ms",
        **shared,
        **({"baseTimeNanoseconds": base_ns} if base_ns else {}),
        "WARNING": [f"rank {rank.rank}: {line}" for rank in ranks for line in loss_lines(rank.frame)],
        "distributedInfo": [rank.frame.get("distributedInfo") for rank in ranks],
        "merged": {
            "ranks": [rank.rank for rank in ranks],
            "missing_ranks": list(absent(ranks)),
            "offsets_ns": {str(rank): shift for rank, shift in shifts.items()},
            "left_out": dict(numbers.dropped),
            "cut": {str(rank.rank): rank.frame[CUT] for rank in ranks if CUT in rank.frame},
        },
    }
