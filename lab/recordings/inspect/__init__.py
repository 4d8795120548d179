"""What lies in a file or folder: which recording, whose, how whole, and which commands read it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lab.core.words import plural, printable, ranks_text
from lab.errors import LabError
from lab.recordings.capture import Capture, filled
from lab.recordings.inspect.walk import Item, items_of, other_of
from lab.recordings.integrity import Shape, lacks_beside, shape_of
from lab.recordings.integrity.replays import WINDOWS, replay_lacks, windows_of
from lab.recordings.lacks import Lack, counted, holes, verdict_of
from lab.recordings.load import format_of, load_capture, named_as_recording
from lab.recordings.tables import Table

TOOLS = {
    "kineto": "torch.profiler",
    "nsys": "Nsight Systems",
    "rocpd": "rocprofv3",
    "rocprofv3": "rocprofv3",
    "rpd": "rocmProfileData",
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

    verdict is None for what lab does not judge (`title` names it); error says why a file cannot be read.
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
    title: str = msgspec.field(name="what", default="")
    commands: list[str] = []
    error: str | None = None


_NO_WINDOWS = filled(WINDOWS)


@dataclass
class _Read:
    """A row, and what the comparison with others needs of its recording."""

    row: Row
    path: Path
    windows: Table = _NO_WINDOWS
    open_replays: Capture | None = None
    shape: Shape | None = None


def inspect_all(paths: Sequence[Path], progress: Callable[[str], None] = lambda _: None) -> list[Row]:
    """A row for every recording in `paths`, and for what lab knows by sight beside them.

    Raises MissingError for a path that does not exist; a file that cannot be read is a row with its error.
    """
    entries: list[_Read] = []
    for item in items_of(paths):
        progress(str(item.path))
        entry = _run_row(item.path) if item.run else _of_item(item)
        if entry is not None:
            entries.append(entry)
    _with_captures_beside(entries)
    _over_ranks(entries)
    return [entry.row for entry in entries]


def _run_row(path: Path) -> _Read:
    from lab.core.run import Run

    try:
        room = Run.open(path).manifest.room
    except LabError as error:
        return _unreadable(path, error, "lab-run")
    return _unjudged(path, "lab-run", "lab", f"a run of lab, room {room}; its recordings follow", (ANALYZE,))


def _unjudged(path: Path, kind: str, tool: str, title: str, forms: Sequence[str] = ()) -> _Read:
    """What lab knows by sight and does not judge."""
    commands = _commands(forms, path)
    row = Row(path=str(path), format=kind, tool=tool, verdict=None, title=title, commands=commands)
    return _Read(row, path)


def _of_item(item: Item) -> _Read | None:
    sight = None if item.path.is_dir() else other_of(item.path)
    if sight is not None:
        return _unjudged(item.path, sight.format, sight.tool, sight.title, sight.commands)
    try:
        kind = format_of(item.path)
    except LabError as error:
        wanted = item.named or named_as_recording(item.path)
        return _unreadable(item.path, error, None) if wanted else None
    if kind.load is None and kind.name in NO_TIMELINE:
        return _unjudged(item.path, kind.name, TOOLS[kind.name], kind.title)
    try:
        return _recording(item.path, load_capture(item.path), kind.title)
    except LabError as error:
        # A JSON file in a folder that is something else altogether.
        if not item.named and error.problem.startswith("not a Kineto trace"):
            return None
        return _unreadable(item.path, error, kind.name)


def _commands(forms: Sequence[str], path: Path) -> list[str]:
    return [form.format(shlex.quote(str(path))) for form in forms]


def _unreadable(path: Path, error: LabError, kind: str | None) -> _Read:
    reason = error.problem + (f" ({error.fix})" if error.fix else "")
    row = Row(
        path=str(path), format=kind, tool=TOOLS.get(kind or ""), verdict="unknown", error=printable(reason)
    )
    return _Read(row, path)


def _recording(path: Path, capture: Capture, title: str) -> _Read:
    is_open = any(lack.rule == "R" and lack.unknown for lack in capture.lacks)
    tool = TOOLS.get(capture.collector, capture.collector)
    row = Row(
        path=str(path),
        format=capture.collector,
        tool=printable(f"{tool} {capture.version}" if capture.version else tool),
        verdict=capture.verdict,
        lacks=list(capture.lacks),
        gpu_ops=len(capture.ops),
        gpu_time_ns=int(capture.ops.dur_ns.sum()),
        processes=[
            {"index": index, "pid": process.pid, "rank": process.rank, "name": process.name}
            for index, process in enumerate(capture.processes)
        ],
        title=title,
        commands=_commands(COMMANDS, path),
    )
    ranked = len(capture.processes) == 1 and capture.processes[0].rank is not None
    shape = shape_of(capture) if ranked and _RANK.search(str(path)) else None
    return _Read(row, path, windows_of(capture), capture if is_open else None, shape)


def _with_captures_beside(entries: Sequence[_Read]) -> None:
    """Replays that nothing in their own file proves, against captures of graphs in their folder or below."""
    for entry in entries:
        if entry.open_replays is None:
            continue
        beside = [
            source.windows
            for source in entries
            if source is not entry and len(source.windows) and source.path.is_relative_to(entry.path.parent)
        ]
        if beside:
            lacks = [lack for lack in entry.row.lacks if lack.rule != "R"]
            entry.row.lacks = [*lacks, *replay_lacks(entry.open_replays, beside)]
            entry.row.verdict = verdict_of(entry.row.lacks)


def _over_ranks(entries: Sequence[_Read]) -> None:
    jobs: dict[str, list[tuple[Row, Shape]]] = {}
    for entry in entries:
        if entry.shape is not None:
            jobs.setdefault(_RANK.sub("rank*", str(entry.path)), []).append((entry.row, entry.shape))
    for ranks in jobs.values():
        for row, shape in ranks:
            peers = [peer for peer_row, peer in ranks if peer_row is not row]
            row.lacks = [*row.lacks, *lacks_beside(shape, peers)]
            row.verdict = verdict_of(row.lacks)


def rows_text(rows: Sequence[Row]) -> str:
    """The rows for a person: a single one with all findings, several on one line each; then what to type."""
    if len(rows) == 1:
        return _paragraph(rows[0])
    lines = [f"{_one_line(row.path)}: {_summary(row)}" for row in rows]
    forms = list(
        dict.fromkeys(
            command.replace(shlex.quote(row.path), "FILE") for row in rows for command in row.commands
        )
    )
    return "\n".join([*lines, *(["read a FILE with: " + "; ".join(forms)] if forms else [])])


def _paragraph(row: Row) -> str:
    from lab.recordings.integrity.words import integrity_lines

    if row.error is not None:
        return f"{_one_line(row.path)}\n  cannot be read: {row.error}"
    lines = [_one_line(row.path), f"  {row.title}"]
    if row.verdict is not None:
        lines.append(f"  recorded by {row.tool}: {_figures(row)}")
        lines += [f"  {line}" for line in integrity_lines(row.lacks, processes=len(row.processes))]
    if row.commands:
        lines.append("  read it with: " + _one_line("; ".join(row.commands)))
    return "\n".join(lines)


def _summary(row: Row) -> str:
    """A row on one line, with its gravest finding."""
    from lab.recordings.integrity.words import sentences

    if row.error is not None:
        return f"cannot be read: {row.error}"
    if row.verdict is None:
        return row.title
    grave = [*holes(row.lacks), *counted(row.lacks)]
    gravest = sentences(grave[:1], processes=len(row.processes))
    num_further = len(dict.fromkeys(grave)) - 1
    further = [plural(num_further, "further finding")] if num_further > 0 else []
    return "; ".join([f"{row.verdict}, {row.tool}, {_figures(row)}", *gravest, *further])


def _figures(row: Row) -> str:
    ranks = [process["rank"] for process in row.processes if process["rank"] is not None]
    processes = plural(len(row.processes), "process") + (f" ({ranks_text(ranks)})" if ranks else "")
    return f"{plural(row.gpu_ops, 'GPU row')}, {row.gpu_time_ns / 1e6:.3f} ms, {processes}"


def _one_line(text: str) -> str:
    return printable(text).replace("\n", "\\n")
