"""One row per recording: what it is, what it lacks, which commands read it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lab.core.words import plural, printable, ranks_text
from lab.errors import BadDataError, LabError
from lab.recordings.capture import Capture
from lab.recordings.inspect.others import other_of
from lab.recordings.inspect.walk import Item, items_of
from lab.recordings.integrity.evidence import Evidence, of_capture
from lab.recordings.integrity.ranks import Shape, lacks_over_ranks, shape_of
from lab.recordings.integrity.replays import Windows, replay_lacks, windows_of
from lab.recordings.lacks import Lack, verdict_of
from lab.recordings.load import format_of, load_capture, named_as_recording

TOOLS = {
    "kineto": "torch.profiler",
    "nsys": "Nsight Systems",
    "rocpd": "rocprofv3",
    "rocprofv3": "rocprofv3",
    "rpd": "rocmProfileData",
    "pftrace": "Perfetto",
    "xplane": "JAX's profiler",
    "rocprof-compute": "rocprof-compute",
}
NO_TIMELINE = ("rocprof-compute",)
ANALYZE = "lab analyze {}"
COMMANDS = (
    ANALYZE,
    "lab nsys summary {}",
    "lab kernels unique {}",
    "lab kernels gantt {}",
    "lab nsys answers {}",
)
_RANK = re.compile(r"rank[_-]?\d+", re.IGNORECASE)


class Row(msgspec.Struct, kw_only=True):
    """What `lab inspect --json` prints of each file.

    verdict is None for what lab does not judge (`what` names it); error says why a file cannot be read.
    gpu_time_ns is the sum over kernels, copies and fills.
    """

    path: str
    format: str | None
    tool: str | None
    verdict: str | None
    lacks: list[Lack] = []
    gpu_ops: int = 0
    gpu_time_ns: int = 0
    processes: list[dict[str, Any]] = []
    what: str = ""
    commands: list[str] = []
    error: str | None = None


@dataclass
class _Read:
    """A row, and what the comparison with others needs of its recording."""

    row: Row
    path: Path
    windows: Windows
    open_replays: Evidence | None
    shape: Shape | None


def inspect_all(paths: Sequence[Path], progress: Callable[[str], None] = lambda _: None) -> list[Row]:
    """A row for every recording in `paths`, and for what lab knows by sight beside them.

    Raises MissingError for a path that does not exist; a file that cannot be read is a row with its error.
    """
    read: list[_Read] = []
    for item in items_of(paths):
        progress(str(item.path))
        one = _run_row(item.path) if item.run else _of_item(item)
        if one is not None:
            read.append(one)
    _with_captures_beside(read)
    _over_ranks(read)
    return [one.row for one in read]


def _plain(row: Row, path: Path) -> _Read:
    return _Read(row, path, windows_of_nothing(), None, None)


def windows_of_nothing() -> Windows:
    import numpy as np

    none = np.empty(0, dtype=np.int64)
    return Windows(none, none, none)


def _run_row(path: Path) -> _Read:
    from lab.core.run import Run

    try:
        room = Run.open(path).manifest.room
    except LabError as error:
        return _unreadable(path, error, "lab-run")
    commands = _commands((ANALYZE,), path)
    what = f"a run of lab, room {room}; its recordings follow"
    return _plain(
        Row(path=str(path), format="lab-run", tool="lab", verdict=None, what=what, commands=commands), path
    )


def _of_item(item: Item) -> _Read | None:
    other = None if item.path.is_dir() else other_of(item.path)
    if other is not None:
        commands = _commands(other.commands, item.path)
        row = Row(
            path=str(item.path),
            format=other.format,
            tool=other.tool,
            verdict=None,
            what=other.what,
            commands=commands,
        )
        return _plain(row, item.path)
    try:
        kind = format_of(item.path)
    except LabError as error:
        wanted = item.named or named_as_recording(item.path)
        return _unreadable(item.path, error, None) if wanted else None
    if kind.load is None and kind.name in NO_TIMELINE:
        row = Row(
            path=str(item.path),
            format=kind.name,
            tool=TOOLS[kind.name],
            verdict=None,
            what=kind.what,
            commands=_commands((ANALYZE,), item.path),
        )
        return _plain(row, item.path)
    try:
        return _recording(item.path, load_capture(item.path), kind.what)
    except LabError as error:
        if not item.named and _no_recording(error):
            return None
        return _unreadable(item.path, error, kind.name)


def _commands(forms: Sequence[str], path: Path) -> list[str]:
    return [form.format(shlex.quote(str(path))) for form in forms]


def _no_recording(error: LabError) -> bool:
    """A JSON file in a folder that is something else altogether."""
    return isinstance(error, BadDataError) and error.problem.startswith("not a Kineto trace")


def _unreadable(path: Path, error: LabError, kind: str | None) -> _Read:
    reason = error.problem + (f" ({error.fix})" if error.fix else "")
    row = Row(
        path=str(path), format=kind, tool=TOOLS.get(kind or ""), verdict="unknown", error=printable(reason)
    )
    return _plain(row, path)


def _recording(path: Path, capture: Capture, what: str) -> _Read:
    of = of_capture(capture)
    windows = windows_of(of)
    is_open = any(lack.rule == "R" and lack.unknown for lack in capture.lacks)
    tool = TOOLS.get(capture.collector, capture.collector)
    row = Row(
        path=str(path),
        format=capture.collector,
        tool=printable(f"{tool} {capture.version}" if capture.version else tool),
        verdict=capture.verdict,
        lacks=list(capture.lacks),
        gpu_ops=len(capture.ops),
        gpu_time_ns=int((capture.ops.end_ns - capture.ops.start_ns).sum()),
        processes=[
            {"index": index, "pid": one.pid, "rank": one.rank} for index, one in enumerate(capture.processes)
        ],
        what=what,
        commands=_commands(COMMANDS, path),
    )
    ranked = len(capture.processes) == 1 and capture.processes[0].rank is not None
    shape = shape_of(capture) if ranked and _RANK.search(str(path)) else None
    return _Read(row, path, windows, of if is_open else None, shape)


def _with_captures_beside(read: Sequence[_Read]) -> None:
    """Replays that nothing in their own file proves, against captures of graphs in their folder or below."""
    for one in read:
        if one.open_replays is None:
            continue
        beside = [
            other.windows
            for other in read
            if other is not one and len(other.windows) and other.path.is_relative_to(one.path.parent)
        ]
        if beside:
            kept = [lack for lack in one.row.lacks if lack.rule != "R"]
            one.row.lacks = [*kept, *replay_lacks(one.open_replays, beside)]
            one.row.verdict = verdict_of(one.row.lacks)


def _over_ranks(read: Sequence[_Read]) -> None:
    jobs: dict[str, list[_Read]] = {}
    for one in read:
        if one.shape is not None:
            jobs.setdefault(_RANK.sub("rank*", str(one.path)), []).append(one)
    for ranks in jobs.values():
        found = lacks_over_ranks([one.shape for one in ranks if one.shape is not None])
        for one, lacks in zip(ranks, found, strict=True):
            one.row.lacks = [*one.row.lacks, *lacks]
            one.row.verdict = verdict_of(one.row.lacks)


def row_text(row: Row) -> str:
    """The row for a person: what it is, its verdict and findings, and what to type."""
    from lab.recordings.integrity.words import integrity_lines

    lines = [_one_line(row.path)]
    if row.error is not None:
        return "\n".join([*lines, f"  cannot be read: {row.error}"])
    lines.append(f"  {row.what}")
    if row.verdict is not None:
        ranks = [one["rank"] for one in row.processes if one["rank"] is not None]
        which = f" ({ranks_text(ranks)})" if ranks else ""
        processes = plural(len(row.processes), "process")
        lines.append(
            f"  recorded by {row.tool}: {plural(row.gpu_ops, 'GPU row')}, {row.gpu_time_ns / 1e6:.3f} ms, "
            f"{processes}{which}"
        )
        lines += [f"  {line}" for line in integrity_lines(row.lacks, processes=len(row.processes))]
    if row.commands:
        lines.append("  read it with: " + _one_line("; ".join(row.commands)))
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return printable(text).replace("\n", "\\n")
