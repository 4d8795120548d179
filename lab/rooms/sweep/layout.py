"""Where a sweep keeps its files: only paths, no file is opened.

`{T}thread/nccl_{C}channels/[repeat{k}/]torch_profiler/rank{r}/{stem}_step{N}.json[.gz]`, the layout of the
original sweep (ROCm/aorta), and single folders of ranks. Names decide, not dates: a copy gives the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from lab.errors import MissingError, UsageError, not_here
from lab.rooms.sweep.knobs import Key, how_in

_THREADS = re.compile(r"(\d+)threads?")
_CHANNELS = re.compile(r"nccl_(\d+)channels?(?:[_-].*)?")
_REPEAT = re.compile(r"repeat_?(\d+)")
_RANK = re.compile(r"rank[_-]?(\d+)")
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[_-]?(\d+)", re.IGNORECASE)
_WORKER = re.compile(r"worker[_-]?(\d+)", re.IGNORECASE)
# A tree of traces in no known layout is searched so deep, and up to so many files.
_DEEPEST, _MOST_FILES = 8, 20_000
_TRACE = re.compile(r".+\.json(\.gz)?")
_PT_TRACE = (".pt.trace.json", ".pt.trace.json.gz")
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
    """One configuration and repeat. threads and channels are None if no folder name gives them.

    algorithm and protocol are "" where none was requested.
    """

    path: Path
    threads: int | None
    channels: int | None
    repeat: int
    traces: tuple[TraceFile, ...]
    nccl_logs: tuple[Path, ...]
    notes: tuple[str, ...]
    algorithm: str = ""
    protocol: str = ""

    @property
    def key(self) -> Key:
        """Setting and repeat; 0 where no folder name gives the number."""
        return Key(self.threads or 0, self.channels or 0, self.algorithm, self.protocol, self.repeat)


def find_configs(folder: Path | str, *, ranks: re.Pattern[str] | None = None) -> list[ConfigDir]:
    """All configurations below `folder`, ordered by number: threads, channels, repeat.

    folder may be a sweep, one {T}thread, one nccl_{C}channels, one torch_profiler, any folder of ranks, or a
    tree that holds such folders. ranks: a pattern for the path of a trace below `folder`, whose first group
    is the rank; what else differs between paths tells runs apart. A configuration without traces is listed
    too. Raises MissingError without a folder or traces.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise not_here("no such folder", folder, "give the folder of a sweep")
    if ranks is not None:
        found = _by_pattern(folder, ranks)
    else:
        found = [_config(path) for config in _config_dirs(folder) for path in _repeat_dirs(config)]
        found = _numbered_apart(found) or [_config(path) for path in _folders_of_ranks(folder)]
    if not found:
        raise MissingError(
            "neither configurations nor traces here",
            location=folder,
            fix="give a folder with {T}thread/nccl_{C}channels/torch_profiler/rank{r}/, or a folder of ranks",
        )
    return sorted(found, key=lambda config: config.key)


def configs_of(
    sweep: Path, *, may_be_empty: bool = False, ranks: re.Pattern[str] | None = None
) -> list[ConfigDir]:
    """The configurations of a sweep, of a folder of ranks, or of a single trace.

    may_be_empty: an empty list, instead of MissingError, for a folder that holds none.
    """
    if sweep.is_file():
        return [ConfigDir(sweep.parent, None, None, 1, (TraceFile(None, sweep, None),), (), ())]
    try:
        return find_configs(sweep, ranks=ranks)
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


def _numbered_apart(configs: list[ConfigDir]) -> list[ConfigDir]:
    """The configurations, where two of one setting (`nccl_28channels_slow5`) are told apart."""
    taken: set[Key] = set()
    found = []
    for config in configs:
        repeat = config.repeat
        while config.key._replace(repeat=repeat) in taken:
            repeat += 1
        taken.add(config.key._replace(repeat=repeat))
        note = f"{config.path.name}: counted as repeat {repeat} of its setting"
        notes = config.notes if repeat == config.repeat else (*config.notes, note)
        found.append(replace(config, repeat=repeat, notes=notes))
    return found


def _folders_of_ranks(folder: Path) -> list[Path]:
    """Folders below `folder` that hold the traces of one run, the topmost of each branch."""
    found, todo = [], [(folder, 0)]
    while todo:
        here, depth = todo.pop()
        if _traces(here):
            found.append(here)
        elif depth < _DEEPEST:
            todo += [(path, depth + 1) for path in here.iterdir() if path.is_dir() and not path.is_symlink()]
    return sorted(found)


def _by_pattern(folder: Path, pattern: re.Pattern[str]) -> list[ConfigDir]:
    """One configuration for each way in which paths differ beside the rank that the pattern's group gives."""
    runs: dict[str, dict[int, list[Path]]] = {}
    for path in islice(_below(folder), _MOST_FILES):
        name = path.relative_to(folder).as_posix()
        match = pattern.search(name)
        if match is None or not _TRACE.fullmatch(path.name):
            continue
        try:
            rank = int(match.group(1))
        except (IndexError, ValueError) as error:
            raise UsageError(
                f"--ranks {pattern.pattern!r} has no group that is a rank in {name}",
                fix=r"put the rank's digits in brackets, for example 'host\d+/gpu(\d+)/'",
            ) from error
        run = str(Path(name[: match.start(1)] + "*" + name[match.end(1) :]).parent)
        runs.setdefault(run, {}).setdefault(rank, []).append(path)
    return [
        ConfigDir(
            path=folder,
            threads=_number_above(paths[min(paths)][0].parent, _THREADS),
            channels=_number_above(paths[min(paths)][0].parent, _CHANNELS),
            repeat=number,
            traces=tuple(trace for rank in sorted(paths) for trace in _pick(rank, paths[rank])),
            nccl_logs=(),
            notes=(f"run {run}",) if len(runs) > 1 else (),
        )
        for number, (run, paths) in enumerate(sorted(runs.items()), start=1)
    ]


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)
        elif path.is_file():
            yield path


def _repeat_dirs(folder: Path) -> list[Path]:
    """The first repeat lies in the folder itself, unless it has a folder of its own."""
    repeats = _subfolders(folder, _REPEAT)
    numbers = [int(_REPEAT.fullmatch(path.name).group(1)) for path in repeats]  # type: ignore[union-attr]
    return repeats if min(numbers, default=2) < 2 else [folder, *repeats]


def _config(path: Path) -> ConfigDir:
    threads, channels = _number_above(path, _THREADS), _number_above(path, _CHANNELS)
    repeat = _REPEAT.fullmatch(path.name)
    algorithm, protocol = _how_above(path)
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
        nccl_logs=tuple(sorted(path.glob("*.log"))),
        notes=tuple(notes),
        algorithm=algorithm,
        protocol=protocol,
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
            worker = _WORKER.match(path.name)  # of several, each is a rank
            key = int(named.group(1)) if named else None
            if key is None and worker and path.name.endswith(_PT_TRACE):
                key = int(worker.group(1))
            if key is not None or path.name.endswith(_PT_TRACE):
                by_rank.setdefault(key, []).append(path)
    return [trace for rank, paths in by_rank.items() for trace in _pick(rank, paths)]


def _pick(rank: int | None, paths: list[Path]) -> list[TraceFile]:
    if rank is None:  # any of these files may be a rank; its trace says which
        return [TraceFile(None, path, None) for path in paths]
    newest = newest_trace(paths)
    return [TraceFile(rank, *newest)] if newest else []


def _subfolders(folder: Path, name: re.Pattern[str]) -> list[Path]:
    found = [path for path in folder.iterdir() if name.fullmatch(path.name) and path.is_dir()]
    numbers = {path: int(name.fullmatch(path.name).group(1)) for path in found}  # type: ignore[union-attr]
    return sorted(found, key=lambda path: (numbers[path], path.name))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _TRACE.fullmatch(path.name) and path.is_file())


def _number_above(path: Path, name: re.Pattern[str]) -> int | None:
    for part in (path.resolve(), *path.resolve().parents):
        match = name.fullmatch(part.name)
        if match:
            return int(match.group(1))
    return None


def _how_above(path: Path) -> tuple[str, str]:
    """(algorithm, protocol) that the configuration's folder names."""
    parts = (path.resolve(), *path.resolve().parents)
    return next((how_in(part.name) for part in parts if _CHANNELS.fullmatch(part.name)), ("", ""))


def _step(path: Path) -> int:
    match = _STEP.search(path.name)
    return int(match.group(1)) if match else -1


def _stamp(path: Path) -> int:
    match = _STAMP.search(path.name)
    return int(match.group(1)) if match else -1
