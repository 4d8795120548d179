"""All ranks in one JSON file: the events of each rank, then the properties of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.recordings.merge.chrome.events import ENCODER
from lab.recordings.merge.chrome.rank import Counters, RankEvents
from lab.recordings.merge.chrome.recordings import Recording, absent, recordings
from lab.recordings.merge.output import Merged, packed


def merge_json(
    traces: Sequence[tuple[int | None, Path]],
    target: Path,
    *,
    offsets_ns: Mapping[int, int] | None = None,
    cpu_ops: bool = True,
    salvage: bool = False,
) -> Merged:
    """Merge `traces`, pairs of (rank as the path says or None, file), into the gzip file `target`.

    offsets_ns (rank -> ns) is added to a rank's times beyond its base. cpu_ops=False leaves out CPU
    operators. A trace that cannot be read is left out and named in problems; nothing is written if none can
    be read. The same input gives the same bytes. Raises StorageError where `target` cannot be written.
    """
    found, problems = recordings(traces, salvage=salvage)
    if not found:
        return Merged(None, (), (), 0, {}, {}, tuple(problems))
    base_ns = min(one.base_ns for one in found)
    shifts = {one.rank: one.base_ns - base_ns + (offsets_ns or {}).get(one.rank, 0) for one in found}
    numbers = Counters()
    with packed(target) as file:
        file.write(b'{"traceEvents":[')
        for one in found:
            RankEvents(one, shifts[one.rank], numbers, cpu_ops=cpu_ops, salvage=salvage).write(file)
        file.write(b"\n],\n" + ENCODER.encode(_document_frame(found, base_ns, shifts, numbers))[1:] + b"\n")
    return Merged(
        path=target,
        ranks=tuple(one.rank for one in found),
        missing=absent(found),
        written=numbers.written,
        dropped=dict(numbers.dropped),
        offsets_ns=shifts,
        problems=(*problems, *numbers.oddities()),
    )


def _document_frame(
    found: Sequence[Recording], base_ns: int, shifts: Mapping[int, int], numbers: Counters
) -> dict[str, Any]:
    """The document around the events: properties of all ranks, and the offset of each."""
    first = found[0].frame
    kept: dict[str, Any] = {key: first[key] for key in ("schemaVersion", "deviceProperties") if key in first}
    return {
        "displayTimeUnit": "ms",
        **kept,
        **({"baseTimeNanoseconds": base_ns} if base_ns else {}),
        "distributedInfo": [one.frame.get("distributedInfo") for one in found],
        "merged": {
            "ranks": [one.rank for one in found],
            "missing_ranks": list(absent(found)),
            "offsets_ns": {str(rank): shift for rank, shift in shifts.items()},
            "left_out": dict(numbers.dropped),
        },
    }
