"""Where a sweep keeps its files: only paths, no file is opened.

`{T}thread/nccl_{C}channels/[repeat{k}/]torch_profiler/rank{r}/{stem}_step{N}.json[.gz]`, the layout of the
original sweep (ROCm/aorta), and single folders of ranks. Names decide, not dates: a copy gives the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from lab.core.words import plural, ranks_text
from lab.errors import MissingError, UsageError, not_here
from lab.rooms.sweep.knobs import Key, how_in

_THREADS = re.compile(r"(\d+)threads?")
_CHANNELS = re.compile(r"nccl_(\d+)channels?(?:[_-].*)?")
_REPEAT = re.compile(r"repeat_?(\d+)")
_RANK = re.compile(r"rank[_-]?(\d+)")
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[_-]?(\d+)", re.IGNORECASE)
_NODE = re.compile(r"(?:node|host|machine)[_-]?(\d+)", re.IGNORECASE)
_WORKER = re.compile(r"worker[_-]?(\d+)", re.IGNORECASE)
# A tree of traces in no known layout is searched so deep, and up to so many files.
_DEEPEST, _MOST_FILES = 8, 20_000
_JSON = re.compile(r".+\.json(\.gz)?")
_PT_TRACE = (".pt.trace.json", ".pt.trace.json.gz")
_STEP = re.compile(r"(?:^|_)step_?(\d+)(?:\.[a-z-]+)+$")
_STAMP = re.compile(r"\.(\d+)\.pt\.trace\.json(?:\.gz)?$")
# What lies beside recordings and is none; anything else may be one, whatever its name ends in.
_BESIDE = ("log", "txt", "jsonl", "csv", "yaml", "yml", "toml", "md", "html", "png", "xlsx", "parquet")
_BESIDE_NAME = re.compile(rf"\.({'|'.join(_BESIDE)}|py|sh|out|err|pkl|json5?)(\.gz)?$|^[.]")


@dataclass(frozen=True)
class TraceFile:
    """One rank's trace. rank and step are those in the path, None if they are not in it.

    is_named: a pattern says which rank it is, whatever the trace says.
    """

    rank: int | None
    path: Path
    step: int | None
    is_named: bool = False


@dataclass(frozen=True)
class ConfigDir:
    """One configuration and repeat. threads and channels are None if no folder name gives them.

    traces are each rank's newest; earlier: of each rank with several, the others, oldest first; window: the
    name of these traces where they are one of several. unmatched: traces that the pattern leaves out.
    wanted_ranks: the ranks that a command was asked for, None for all.
    run: what names it where one folder holds several runs.
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
    earlier: tuple[tuple[TraceFile, ...], ...] = ()
    window: str = ""
    unmatched: tuple[str, ...] = ()
    wanted_ranks: tuple[int, ...] | None = None
    run: str = ""

    @property
    def key(self) -> Key:
        """Setting and repeat; 0 where no folder name gives the number."""
        return Key(self.threads or 0, self.channels or 0, self.algorithm, self.protocol, self.repeat)

    def windows(self) -> list[ConfigDir]:
        """One configuration per window that the profiler recorded, in order of time."""
        by_rank = {files[0].rank: files for files in self.earlier}
        ranks = [(*by_rank.get(newest.rank, ()), newest) for newest in self.traces]
        num_windows, windows = max(map(len, ranks), default=1), []
        for number in range(-num_windows, 0):  # counted from the newest, which every rank has
            traces = tuple(files[number] for files in ranks if len(files) >= -number)
            name = traces[0].path.name.split(".")[0] if num_windows > 1 else ""
            windows.append(replace(self, traces=traces, earlier=(), window=name))
        return windows

    def left_out(self) -> list[str]:
        """What an analysis of the newest traces alone leaves out."""
        texts = []
        if files := [trace.path.name for traces in self.earlier for trace in traces]:
            ranks = ranks_text([traces[0].rank or 0 for traces in self.earlier])
            older = plural(len(files), "older trace")
            texts.append(f"{older} of {ranks} left out ({files[0]}): lab ranks reads them too")
        if self.unmatched:
            texts.append(
                f"{plural(len(self.unmatched), 'trace')} not matched by --ranks: {self.unmatched[0]}"
            )
        return texts


@dataclass(frozen=True)
class Selection:
    """Which settings and ranks of a sweep are wanted; None: all."""

    threads: list[int] | None = None
    channels: list[int] | None = None
    ranks: list[int] | None = None

    def has(self, threads: int | None, channels: int | None) -> bool:
        wanted = ((self.threads, threads), (self.channels, channels))
        return all(numbers is None or (number or 0) in numbers for numbers, number in wanted)

    def has_rank(self, rank: int | None) -> bool:
        return self.ranks is None or rank is None or rank in self.ranks


def find_configs(
    sweep: Path, *, ranks: re.Pattern[str] | None = None, may_be_empty: bool = False
) -> list[ConfigDir]:
    """The configurations of a sweep or of a single trace, ordered by number: threads, channels, repeat.

    sweep may also be one {T}thread, one nccl_{C}channels, one torch_profiler, any folder of ranks, or a tree
    that holds such folders. ranks: a pattern for the path of a trace below it, whose group is the rank, or
    whose two groups are node and local rank; what else differs between paths tells runs apart. A
    configuration without traces is listed too. Raises MissingError without a folder or, unless
    `may_be_empty`, without traces.
    """
    if sweep.is_file():
        return [ConfigDir(sweep.parent, None, None, 1, (TraceFile(None, sweep, None),), (), ())]
    if not sweep.is_dir():
        raise not_here("no such folder", sweep, "give the folder of a sweep")
    if ranks is not None:
        configs = _by_pattern(sweep, ranks)
    else:
        runs = [_config(path) for path in _runs(sweep)]
        settings = [config for config in runs if config.channels is not None]
        configs = list(_numbered_apart(settings)) or _by_node(sweep) or list(_numbered_apart(runs))
    if not configs and not may_be_empty:
        raise MissingError(
            "neither configurations nor traces here",
            location=sweep,
            fix="give a folder with {T}thread/nccl_{C}channels/torch_profiler/rank{r}/, or ranks; "
            "with lab ranks, --ranks says which part of a path is the rank",
        )
    return sorted(configs, key=lambda config: config.key)


def sweep_beside(analysis: Path) -> Path | None:
    """The sweep whose analysis folder this is, if its traces lie where a sweep keeps them."""
    parent = analysis.resolve().parent
    configs = find_configs(parent, may_be_empty=True)
    is_beside = any(run.traces and (run.path == parent or run.channels is not None) for run in configs)
    return parent if is_beside else None


def in_order(paths: Iterable[Path]) -> list[tuple[Path, int | None]]:
    """Each trace of one rank with its step, oldest first: by step, else by time stamp, then by name.

    Of traces without both the last one alone counts, because they may be copies.
    """
    paths = list(paths)
    traces = [path for path in paths if _JSON.fullmatch(path.name)]
    traces = traces or [path for path in paths if not _BESIDE_NAME.search(path.name)]
    dates = {path: (_number(_STEP, path, -1), _number(_STAMP, path, -1)) for path in traces}
    traces.sort(key=lambda path: (dates[path], ".pt.trace." in path.name, path.name))
    dated = [path for path in traces if max(dates[path]) >= 0]
    return [(path, None if dates[path][0] < 0 else dates[path][0]) for path in dated or traces[-1:]]


def _runs(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Folders named as settings, or that hold the traces of one run: the topmost of each branch."""
    parents = _subfolders(folder, _THREADS)
    settings = [path for threads in parents for path in _subfolders(threads, _CHANNELS)]
    settings = settings or _subfolders(folder, _CHANNELS)
    is_setting = bool(_CHANNELS.fullmatch(folder.resolve().name))
    if settings or is_setting or _subfolders(folder, _REPEAT) or _by_rank(folder):
        # Beside settings lie analyses, older runs, a trace that was copied up: none of them is a setting.
        for path in settings or [folder]:
            yield from _repeats(path)
    elif depth < _DEEPEST:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():  # links may lead out of the folder, or in circles
                yield from _runs(path, depth + 1)


def _repeats(folder: Path) -> list[Path]:
    """The first repeat lies in the folder itself, unless it has a folder of its own."""
    repeats = _subfolders(folder, _REPEAT)
    return repeats if any(_number(_REPEAT, path) < 2 for path in repeats) else [folder, *repeats]


def _numbered_apart(configs: Iterable[ConfigDir]) -> Iterator[ConfigDir]:
    """The configurations, where two of one setting (`nccl_28channels_slow5`) are told apart."""
    taken: set[Key] = set()
    for config in configs:
        repeat = config.repeat
        while config.key._replace(repeat=repeat) in taken:
            repeat += 1
        taken.add(config.key._replace(repeat=repeat))
        note = f"{config.path.name}: counted as repeat {repeat} of its setting"
        notes = config.notes if repeat == config.repeat else (*config.notes, note)
        yield replace(config, repeat=repeat, notes=notes)


def _by_node(folder: Path) -> list[ConfigDir]:
    """One run of several nodes, whose folders (node0, node1) hold ranks that each node may number from 0."""
    of_nodes = [_by_rank(path) for path in _subfolders(folder, _NODE)]
    if len(of_nodes) < 2 or not all(of_nodes) or any(None in by_rank for by_rank in of_nodes):
        return []
    files: dict[tuple[int, ...], list[Path]] = {
        (node, rank or 0): paths for node, ranks in enumerate(of_nodes) for rank, paths in ranks.items()
    }
    if len({rank for _, rank in files}) == len(files):
        return [_config(folder, {rank: paths for (_, rank), paths in files.items()})]
    num_local = 1 + max(rank for _, rank in files)
    note = f"{plural(len(of_nodes), 'node')} of {plural(num_local, 'rank')}: numbered node by node"
    return [_config(folder, {_rank_of(parts, files): paths for parts, paths in files.items()}, (note,))]


def _by_pattern(folder: Path, pattern: re.Pattern[str]) -> list[ConfigDir]:
    """One configuration for each way in which paths differ beside the rank that the pattern's groups give."""
    runs: dict[str, dict[tuple[int, ...], list[Path]]] = {}
    unmatched: list[str] = []
    for path in islice(_below(folder), _MOST_FILES):
        name = path.relative_to(folder).as_posix()
        match = pattern.search(name)
        if match is None:
            unmatched += [name] if _is_trace(path.name) else []
        elif not _BESIDE_NAME.search(path.name) or _JSON.fullmatch(path.name):
            groups = match.groups()[:2]
            if not groups or not all(group and group.isdecimal() for group in groups):
                raise UsageError(
                    f"--ranks {pattern.pattern!r} has no group that is a rank in {name}",
                    fix=r"put digits in brackets: 'gpu(\d+)/', or node and local rank: 'host(\d+)/gpu(\d+)/'",
                )
            run = name
            for group in reversed(range(1, len(groups) + 1)):
                run = run[: match.start(group)] + "*" + run[match.end(group) :]
            by_rank = runs.setdefault(str(Path(run).parent), {})
            by_rank.setdefault(tuple(map(int, groups)), []).append(path)
    configs = []
    for repeat, (run, paths) in enumerate(sorted(runs.items()), start=1):
        label = f"run {run}" if len(runs) > 1 else ""
        numbered = {_rank_of(parts, paths): files for parts, files in sorted(paths.items())}
        config = _config(folder, numbered, (label,) if label else (), is_named=True)
        threads, channels, *_ = _setting_above(paths[min(paths)][0].parent)
        config = replace(config, threads=threads, channels=channels, repeat=repeat, nccl_logs=(), run=label)
        configs.append(replace(config, unmatched=tuple(unmatched)))
    return configs


def _rank_of(parts: tuple[int, ...], paths: Mapping[tuple[int, ...], object]) -> int:
    """The rank of the groups' numbers: one is the rank, two are the node and the rank on it."""
    if len(parts) == 1:
        return parts[0]
    num_local = 1 + max(key[1] for key in paths)
    return sorted({key[0] for key in paths}).index(parts[0]) * num_local + parts[1]


def _below(folder: Path) -> Iterator[Path]:
    """All files below, in order. Raises what a folder that cannot be read raises: `rglob` would skip it."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)
        elif path.is_file():
            yield path


def _config(
    path: Path,
    by_rank: Mapping[int, list[Path]] | Mapping[int | None, list[Path]] | None = None,
    notes: tuple[str, ...] = (),
    *,
    is_named: bool = False,
) -> ConfigDir:
    threads, channels, algorithm, protocol = _setting_above(path)
    by_rank = _by_rank(path) if by_rank is None else by_rank
    traces: list[TraceFile] = []
    earlier: list[tuple[TraceFile, ...]] = []
    for rank, paths in by_rank.items():
        if rank is None:  # any of these files may be a rank; its trace says which
            traces += [TraceFile(None, file, None) for file in paths]
            continue
        files = [TraceFile(rank, file, step, is_named) for file, step in in_order(paths)]
        traces += files[-1:]
        earlier += [tuple(files[:-1])] if len(files) > 1 else []
    if not traces:
        notes = (*notes, "no traces here")
    if not is_named and (threads is None or channels is None):
        notes = (*notes, "the folder's name gives no threads and channels")
    return ConfigDir(
        path=path,
        threads=threads,
        channels=channels,
        repeat=_number(_REPEAT, path) if _REPEAT.fullmatch(path.name) else 1,
        traces=tuple(traces),
        nccl_logs=tuple(sorted(path.glob("*.log"))),
        notes=notes,
        algorithm=algorithm,
        protocol=protocol,
        earlier=tuple(earlier),
    )


def _by_rank(config: Path) -> dict[int | None, list[Path]]:
    """The files of each rank in a configuration's folder; None: any of them may be a rank."""
    recorded = config / "torch_profiler"
    home = recorded if recorded.is_dir() else config
    by_rank: dict[int | None, list[Path]] = {}
    for folder in _subfolders(home, _RANK):
        if files := _recordings(folder):
            by_rank.setdefault(_number(_RANK, folder), []).extend(files)
    if by_rank:
        return by_rank
    for path in _recordings(home):
        is_torch = path.name.endswith(_PT_TRACE)
        # Of several workers each is a rank.
        named = _RANK_IN_NAME.search(path.name) or (_WORKER.match(path.name) if is_torch else None)
        if named or is_torch:
            by_rank.setdefault(int(named[1]) if named else None, []).append(path)
    return by_rank


def _recordings(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return [path for path in files if not _BESIDE_NAME.search(path.name) or _is_trace(path.name)]


def _is_trace(name: str) -> bool:
    from lab.recordings.load import named_as_recording  # brings numpy: not for `lab run`

    return bool(_JSON.fullmatch(name)) or named_as_recording(Path(name))


def _subfolders(folder: Path, name: re.Pattern[str]) -> list[Path]:
    paths = [path for path in folder.iterdir() if name.fullmatch(path.name) and path.is_dir()]
    return sorted(paths, key=lambda path: (_number(name, path), path.name))


def _number(name: re.Pattern[str], path: Path, absent: int = 0) -> int:
    match = name.search(path.name)
    return int(match.group(1)) if match else absent


def _setting_above(path: Path) -> tuple[int | None, int | None, str, str]:
    """Threads, channels, algorithm and protocol by the names of a folder and of those around it."""
    names = [part.name for part in (path.resolve(), *path.resolve().parents)]
    threads, channels = (
        next((match for name in names if (match := level.fullmatch(name))), None)
        for level in (_THREADS, _CHANNELS)
    )
    algorithm, protocol = how_in(channels[0]) if channels else ("", "")
    return int(threads[1]) if threads else None, int(channels[1]) if channels else None, algorithm, protocol
