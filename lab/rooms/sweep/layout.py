"""Where a sweep keeps its files: only paths, no file is opened.

`{T}thread/nccl_{C}channels/[repeat{k}/]torch_profiler/rank{r}/{stem}_step{N}.json[.gz]`, the layout of the
original sweep (ROCm/aorta), and single folders of ranks. Names decide, not dates: a copy gives the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.errors import MissingError

_THREADS = re.compile(r"(\d+)threads?")
_CHANNELS = re.compile(r"nccl_(\d+)channels?")
_REPEAT = re.compile(r"repeat_?(\d+)")
_RANK = re.compile(r"rank[_-]?(\d+)")
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[_-]?(\d+)", re.IGNORECASE)
_TRACE = re.compile(r".+\.json(\.gz)?")
_STEP = re.compile(r"(?:^|_)step_?(\d+)\.json(?:\.gz)?$")
_STAMP = re.compile(r"\.(\d+)\.pt\.trace\.json(?:\.gz)?$")


@dataclass(frozen=True)
class TraceFile:
    """The trace to read for one rank. rank and step are those in the path, None if they are not in it."""

    rank: int | None
    path: Path
    step: int | None


@dataclass(frozen=True)
class ConfigDir:
    """One configuration and repeat. threads and channels are None if no folder name gives them."""

    path: Path
    threads: int | None
    channels: int | None
    repeat: int
    traces: tuple[TraceFile, ...]
    nccl_logs: tuple[Path, ...]
    notes: tuple[str, ...]


def find_configs(folder: Path | str) -> list[ConfigDir]:
    """All configurations below `folder`, ordered by number: threads, channels, repeat.

    folder may be a sweep, one {T}thread, one nccl_{C}channels, one torch_profiler or any folder of ranks.
    A configuration without traces is listed too. Raises MissingError without a folder or traces.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise MissingError("no such folder", where=folder, fix="give the folder of a sweep")
    found = [_config(path) for config in _config_dirs(folder) for path in _repeat_dirs(config)]
    if not found:
        raise MissingError(
            "neither configurations nor traces here",
            where=folder,
            fix="give a folder with {T}thread/nccl_{C}channels/torch_profiler/rank{r}/, or a folder of ranks",
        )
    return sorted(found, key=lambda c: (c.threads or 0, c.channels or 0, c.repeat))


def configs_of(sweep: Path, *, may_be_empty: bool = False) -> list[ConfigDir]:
    """The configurations of a sweep, of a folder of ranks, or of a single trace.

    may_be_empty: an empty list, instead of MissingError, for a folder that holds none.
    """
    if sweep.is_file():
        return [ConfigDir(sweep.parent, None, None, 1, (TraceFile(None, sweep, None),), (), ())]
    try:
        return find_configs(sweep)
    except MissingError:
        if may_be_empty and sweep.is_dir():
            return []
        raise


def newest_trace(paths: Iterable[Path]) -> tuple[Path, int | None] | None:
    """The trace with the highest step; without steps the highest time stamp, then the last name."""
    traces = [path for path in paths if _TRACE.fullmatch(path.name)]
    if not traces:
        return None
    best = max(traces, key=lambda path: (_step(path), _stamp(path), ".pt.trace." in path.name, path.name))
    step = _step(best)
    return best, step if step >= 0 else None


def _config_dirs(folder: Path) -> list[Path]:
    threads = _subfolders(folder, _THREADS)
    channels = [path for thread in threads for path in _subfolders(thread, _CHANNELS)]
    channels = channels or _subfolders(folder, _CHANNELS)
    if channels:
        return channels
    is_config = bool(_CHANNELS.fullmatch(folder.resolve().name))
    return [folder] if is_config or _subfolders(folder, _REPEAT) or _traces(folder) else []


def _repeat_dirs(folder: Path) -> list[Path]:
    """The first repeat lies in the folder itself, unless it has a folder of its own."""
    repeats = _subfolders(folder, _REPEAT)
    numbers = [int(_REPEAT.fullmatch(path.name).group(1)) for path in repeats]  # type: ignore[union-attr]
    return repeats if min(numbers, default=2) < 2 else [folder, *repeats]


def _config(path: Path) -> ConfigDir:
    threads, channels = _number_above(path, _THREADS), _number_above(path, _CHANNELS)
    repeat = _REPEAT.fullmatch(path.name)
    traces = _traces(path)
    notes = [] if traces else ["no traces here"]
    if threads is None or channels is None:
        notes.append("the folder's name gives no threads and channels: 0 stands for unknown")
    return ConfigDir(
        path=path,
        threads=threads,
        channels=channels,
        repeat=int(repeat.group(1)) if repeat else 1,
        traces=tuple(traces),
        nccl_logs=tuple(sorted(path.glob("nccl*.log"))),
        notes=tuple(notes),
    )


def _traces(config: Path) -> list[TraceFile]:
    recorded = config / "torch_profiler"
    home = recorded if recorded.is_dir() else config
    by_rank: dict[int | None, list[Path]] = {}
    for folder in _subfolders(home, _RANK):
        rank = int(_RANK.fullmatch(folder.name).group(1))  # type: ignore[union-attr]
        by_rank.setdefault(rank, []).extend(_files(folder))
    if not by_rank:
        for path in _files(home):
            named = _RANK_IN_NAME.search(path.name)
            key = int(named.group(1)) if named else None
            if key is not None or path.name.endswith((".pt.trace.json", ".pt.trace.json.gz")):
                by_rank.setdefault(key, []).append(path)
    return [trace for rank, paths in by_rank.items() for trace in _pick(rank, paths)]


def _pick(rank: int | None, paths: list[Path]) -> list[TraceFile]:
    if rank is None:  # any of these files may be a rank; its trace says which
        return [TraceFile(None, path, None) for path in paths]
    newest = newest_trace(paths)
    return [TraceFile(rank, *newest)] if newest else []


def _subfolders(folder: Path, name: re.Pattern[str]) -> list[Path]:
    found = [path for path in folder.iterdir() if name.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(name.fullmatch(path.name).group(1)))  # type: ignore[union-attr]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _TRACE.fullmatch(path.name) and path.is_file())


def _number_above(path: Path, name: re.Pattern[str]) -> int | None:
    for part in (path.resolve(), *path.resolve().parents):
        match = name.fullmatch(part.name)
        if match:
            return int(match.group(1))
    return None


def _step(path: Path) -> int:
    match = _STEP.search(path.name)
    return int(match.group(1)) if match else -1


def _stamp(path: Path) -> int:
    match = _STAMP.search(path.name)
    return int(match.group(1)) if match else -1
