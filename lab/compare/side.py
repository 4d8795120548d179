"""One side of a comparison: the ranks of a recording, and the GPU work of each."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from lab.core.run import MANIFEST
from lab.errors import BadDataError, LabError, MissingError
from lab.recordings.calls import GRAPH_LAUNCH, call_kinds
from lab.recordings.capture import Capture
from lab.recordings.integrity.rules import lost_at_edges
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import holes
from lab.recordings.load import load_capture
from lab.recordings.names import short_name
from lab.recordings.nsys.export import is_folder
from lab.recordings.phase_names import step_family
from lab.recordings.processes import rank_captures
from lab.recordings.tables import MEMSET
from lab.recordings.views import MEMCOPY, classify, launch_calls, link_ops

_GZIPPED = (".json", ".sqlite", ".db", ".rpd", ".xplane.pb")
RECORDINGS = (*_GZIPPED, *(f"{end}.gz" for end in _GZIPPED), ".nsys-rep")
_LAMBDA = re.compile(r"\[lambda\(([^()]*)\) \(instance (\d+)\)\]")
_CAST = re.compile(r"\((?:unsigned |signed )?(?:char|short|int|long|long long)\)(?=-?\d)")
# Copies, with their ends, and fills.
_MEMORY = {
    "torch.profiler": re.compile(r"Memcpy (\w)to(\w)\b|Memset\b"),
    "nsys": re.compile(r"\[CUDA (?:memcpy (\w+)-to-(\w+)|memset)\]"),
    "rpd": re.compile(r"Copy(Host|Device)To(Host|Device)"),
    "rocprofiler": re.compile(r"MEMORY_COPY_(HOST|DEVICE)_TO_(HOST|DEVICE)"),
}
_SUFFIX = re.compile(r"(?<=\d)(?:ull|ul|u|ll|l)\b")
_WAIT = re.compile(r"(cuda|hip|cu)(\w*Synchronize|Memcpy(?!\w*Async)\w*)(_v\d+)?$")
RANK = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
LONGEST = 72  # letters of a kernel's name in a sentence
_SNIFFED = 1 << 20  # of a JSON file in a run: a trace's events begin within
Key = tuple[str, str, str, str]  # op, dims, types, kernel; op is "" where no op is known


@dataclass(frozen=True)
class Work:
    """The GPU work of one rank. Arrays (n,) are of its GPU operations, by start."""

    rank: int
    trace: Capture
    drop: tuple[str, ...] = ()  # of op, dims and types what is not told apart (diff.detail)
    plain: bool = False  # names of kernels as nsys and torch.profiler both say them

    @property
    def torn(self) -> list[str]:
        """A sentence for each hole in its GPU operations, for graph replays that lost any, and where no step
        is whole: figures are bounds."""
        texts = self._holes(of_gpu=True)
        if len(self.perhaps_cut) or not len(self._cut_replays[1]):  # without its call no step acquits it
            perhaps = [
                lack
                for lack in self.trace.lacks
                if lack.rule == "R" and lack.unknown and lack.place == "hole"
            ]
            texts += [f"{self.trace.source.name}: {text}" for text in sentences(perhaps)]
        if self.cut.any() and not self.is_whole_somewhere:
            texts.append(f"{self.trace.source.name}: GPU work of every step is missing")
        return texts

    @property
    def blurred(self) -> list[str]:
        """A sentence for each hole in its launches or operators: ops, phases and modules may be wrong."""
        return self._holes(of_gpu=False)

    def _holes(self, *, of_gpu: bool) -> list[str]:
        lost_replays = [lack for lack in self.trace.lacks if lack.rule == "R" and not lack.unknown]
        distinct = dict.fromkeys([*holes(self.trace.lacks), *lost_replays])
        texts = sentences([lack for lack in distinct if (lack.axis == "gpu") == of_gpu])
        return [f"{self.trace.source.name}: {text}" for text in texts]

    @cached_property
    def order(self) -> np.ndarray:
        rows: np.ndarray = np.argsort(self.trace.ops.start_ns, kind="stable")
        return rows

    @cached_property
    def start_ns(self) -> np.ndarray:
        start_ns: np.ndarray = self.trace.ops.start_ns[self.order]
        return start_ns

    @cached_property
    def dur_ns(self) -> np.ndarray:
        dur_ns: np.ndarray = self.trace.ops.dur_ns[self.order]
        return dur_ns

    @cached_property
    def launched_ns(self) -> np.ndarray:
        """When the CPU launched it; its own start where the launch was not recorded."""
        call = launch_calls(self.trace)[self.order]
        launched_ns: np.ndarray = self.start_ns.copy()
        launched_ns[call >= 0] = self.trace.api.start_ns[call[call >= 0]]
        return launched_ns

    @cached_property
    def launch_known(self) -> np.ndarray:
        """Whether its launch was recorded."""
        known_launches: np.ndarray = (launch_calls(self.trace) >= 0)[self.order]
        return known_launches

    @cached_property
    def waits_ns(self) -> np.ndarray:
        """(m, 2): the calls in which the host waits for the GPU, by end."""
        runtime = self.trace.api
        waits = np.array([*map(is_wait, self.trace.strings), False])
        rows = np.flatnonzero(waits[runtime.name_id])
        spans = np.stack([runtime.start_ns[rows], runtime.end_ns[rows]], axis=1)
        by_end: np.ndarray = spans[np.argsort(spans[:, 1], kind="stable")]
        return by_end

    @cached_property
    def classes(self) -> np.ndarray:
        """COMP, COMM or MEMCOPY; fills count as copies: both wait for memory, and neither computes."""
        classes = classify(self.trace)
        of_ops: np.ndarray = np.where(self.trace.ops.kind == MEMSET, MEMCOPY, classes)[self.order]
        return of_ops

    @cached_property
    def keys(self) -> tuple[list[Key], np.ndarray]:
        """The distinct (op, dims, types, kernel), and the index of each operation's own (n,)."""
        trace, kernels = self.trace, self.trace.ops
        op = link_ops(trace)
        columns = [kernels.name_id]
        for name in ("name_id", "dims_id", "types_id"):
            ids = getattr(trace.operators, name)
            columns.append(
                np.where(op >= 0, ids[np.maximum(op, 0)], -1) if len(ids) else np.full(len(op), -1)
            )
        distinct, index_of = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        text = [*trace.strings, ""]
        named = plain_name if self.plain else kernel_name
        for column, name in enumerate(("op", "dims", "types"), start=1):
            if name in self.drop:
                distinct[:, column] = -1
        keys = [(text[o], text[d], text[t], named(text[k])) for k, o, d, t in distinct.tolist()]
        return keys, index_of.reshape(-1)[self.order]

    def has(self, *parts: int) -> np.ndarray:
        """Which operations (n,) have these parts of their key: 0 is the op, 1 its shapes."""
        keys, key_of = self.keys
        mask: np.ndarray = np.array([all(key[part] for part in parts) for key in keys], dtype=bool)[key_of]
        return mask

    @cached_property
    def _steps(self) -> tuple[np.ndarray, list[str]]:
        return marked_steps(self.trace)

    @property
    def steps_ns(self) -> np.ndarray:
        """(m, 2): the steps that the program marked, by start, none inside another; perhaps none."""
        return self._steps[0]

    @cached_property
    def step_numbers(self) -> list[int]:
        """The number in each step's name, where all have one of their own; else 0, 1, 2, ..."""
        digits = [re.findall(r"\d+", name)[-1:] for name in self._steps[1]]
        numbers = [int(number) for digit in digits for number in digit]
        return numbers if len(set(numbers)) == len(digits) else list(range(len(digits)))

    @cached_property
    def cut(self) -> np.ndarray:
        """Which of the steps (m,) launched GPU operations that the edges of the recording cut off, or a graph
        replay that lost some."""
        edges = self.steps_ns
        is_cut = np.zeros(len(edges), dtype=bool)
        calls = [self._cut_replays[0], self.perhaps_cut]
        if any(lack.rule == "G" and lack.place in ("head", "tail") for lack in self.trace.lacks):
            calls.append(lost_at_edges(self.trace))
        step = step_at(edges, self.trace.api.start_ns[np.concatenate(calls)])
        is_cut[step[step >= 0]] = True
        return is_cut

    @cached_property
    def _cut_replays(self) -> tuple[np.ndarray, np.ndarray]:
        """The calls of graph replays that lost rows, and of those that may have."""
        if not any(lack.rule == "R" for lack in self.trace.lacks):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        from lab.recordings.integrity.replays import cut_launches

        return cut_launches(self.trace)

    @cached_property
    def perhaps_cut(self) -> np.ndarray:
        """The calls (k,) of graph replays that may have lost rows. In a step with more replays than the other
        steps have, it is another graph, which came in addition."""
        calls = self._cut_replays[1]
        if not len(calls):
            return calls
        edges, runtime = self.steps_ns, self.trace.api
        launches = call_kinds(self.trace) == GRAPH_LAUNCH
        replays = np.bincount(step_at(edges, runtime.start_ns[launches]) + 1, minlength=len(edges) + 1)[1:]
        step = step_at(edges, runtime.start_ns[calls])
        additional = [
            index >= 0 and len(edges) > 1 and replays[index] > np.median(np.delete(replays, index))
            for index in step.tolist()
        ]
        unexplained: np.ndarray = calls[~np.array(additional)]
        return unexplained

    @cached_property
    def is_whole_somewhere(self) -> bool:
        """Whether a step that launched GPU operations has all of them."""
        step = step_at(self.steps_ns, self.launched_ns)
        return not self.cut[step[step >= 0]].all()


@dataclass(frozen=True)
class Side:
    """A recording, or a folder with one per rank; of a sweep with one per configuration and rank.

    A key is (configuration, rank); the configuration is "" where there is one alone.
    """

    path: Path
    ranks: dict[tuple[str, int], Work]
    problems: list[str]


def read_side(path: Path) -> Side:
    """The ranks at `path`: a file with one or several processes, or a folder of them.

    Raises MissingError where there is none, what the readers raise for a file that was named itself.
    """
    files = recordings_at(path)
    if files == [path]:
        lone_works = read_works(path)
        return Side(path, {("", work.rank if len(lone_works) > 1 else 0): work for work in lone_works}, [])
    works: list[tuple[Path, Work]] = []
    problems = []
    for file in files:
        if _is_of_lab(file, path):
            continue
        try:
            works += [(file, work) for work in read_works(file)]
        except LabError as error:
            problems.append(f"{file.relative_to(path)} is left out: {error.problem}")
    if not works:
        raise MissingError(
            "no recording in this folder",
            location=path,
            fix="; ".join(problems[:2])
            or f"lab reads {', '.join(RECORDINGS)}, and nsys' folders of Parquet files",
        )
    several = len({work.rank for _, work in works}) < len(works)
    ranks: dict[tuple[str, int], Work] = {}
    for file, work in works:
        key = (configuration_of(file, path) if several else "", work.rank)
        if earlier := ranks.get(key):
            raise BadDataError(
                f"two recordings of rank {work.rank}: {earlier.trace.source.relative_to(path)} and "
                f"{file.relative_to(path)}",
                location=path / key[0],
                fix="name a folder that holds one recording per rank, or per configuration and rank",
            )
        ranks[key] = work
    return Side(path, ranks, problems)


def configuration_of(file: Path, path: Path) -> str:
    """The folders between, without those that name a rank or the profiler."""
    between = file.relative_to(path).parent.parts
    return "/".join(part for part in between if not RANK.fullmatch(part) and part != "torch_profiler")


def place_text(key: tuple[str, int]) -> str:
    return f"{key[0]}, rank {key[1]}" if key[0] else f"rank {key[1]}"


def _is_of_lab(file: Path, path: Path) -> bool:
    """Whether it is one of the files that lab itself writes into a run, and no recording."""
    if ".json" not in file.suffixes[-2:] and file.suffix != ".json":
        return False
    above = [path, *(parent for parent in file.parents if parent.is_relative_to(path))]
    if not any((parent / MANIFEST).is_file() for parent in above):
        return False
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            start = opened.read(_SNIFFED)
    except (OSError, EOFError, zlib.error):
        return False  # damaged: the reader says what
    return b'"traceEvents"' not in start and b'"rocprofiler-sdk-tool"' not in start


def recordings_at(path: Path) -> list[Path]:
    """The path itself if it is one recording, else those below it; nsys' export to Parquet is a folder."""
    if not path.is_dir() or _is_export(path):
        return [path]
    return sorted(
        path_below
        for path_below in path.rglob("*")
        if (path_below.is_file() and path_below.name.endswith(RECORDINGS))
        or (path_below.is_dir() and _is_export(path_below))
    )


def _is_export(folder: Path) -> bool:
    return is_folder([path.name for path in folder.iterdir()])


def read_works(path: Path) -> list[Work]:
    """The GPU work of each process of a recording of any format; one without any work is left out."""
    traces = [trace for trace in rank_captures(load_capture(path)) if len(trace.ops)]
    if not traces:
        raise BadDataError(
            "no GPU operation in this recording", location=path, fix="record on a GPU: see lab inspect"
        )
    ranks = [trace.meta.rank for trace in traces]
    if len(traces) == 1:
        named = RANK.search(path.name) or RANK.search(path.parent.name)
        return [Work(ranks[0] if ranks[0] is not None else int(named[1]) if named else 0, traces[0])]
    is_told_apart = len({rank for rank in ranks if rank is not None}) == len(ranks)
    numbers = ranks if is_told_apart else range(len(traces))
    return [Work(rank or 0, trace) for rank, trace in zip(numbers, traces, strict=True)]


def plain_name(text: str) -> str:
    """A kernel's name as every tool says it: without its arguments, casts and blanks; a copy by its ends."""
    if memory := memory_name(text):
        return memory[1]
    name = text.replace("(anonymous namespace)", "unnamed").replace("<unnamed>", "unnamed")
    name = _LAMBDA.sub(r"{lambda(\1)#\2}", name).removeprefix("void ")
    name = name.replace("(bool)0", "false").replace("(bool)1", "true")
    name = re.sub(r"\s+", "", _SUFFIX.sub("", _CAST.sub("", name)))
    depth = 0
    for index, letter in enumerate(name):
        if letter in "<{":
            depth += 1
        elif letter in ">}" and name[index - 1 : index] != "-":
            # The `>` of `->` closes no bracket.
            depth -= 1
        elif letter == "(" and depth <= 0 and index:
            return name[:index]
    return name


def memory_name(text: str) -> tuple[str, str] | None:
    """Find the tool that writes a copy's or fill's name so, and its name for all tools."""
    for tool, pattern in _MEMORY.items():
        if match := pattern.match(text):
            ends = [group[0].upper() for group in match.groups() if group]
            return tool, f"memcpy {'-'.join(ends)}" if ends else "memset"
    return None


def is_wait(call: str) -> bool:
    """Whether the host waits for the GPU in this API function."""
    return _WAIT.match(call) is not None


def kernel_name(text: str) -> str:
    """A kernel's name as both tools of a pair write it."""
    return text.removesuffix(".kd").strip()


def short_kernel(text: str) -> str:
    """A kernel's name that fits a sentence; the row has all of it."""
    short = short_name(text)
    return short if len(short) <= LONGEST else f"{short[: LONGEST - 12]}…{short[-11:]}"


def marked_steps(trace: Capture) -> tuple[np.ndarray, list[str]]:
    """Ranges on the CPU (m, 2) that are steps, of the kind with most of them that do not overlap, profiler
    steps first, and their names (m,), as in lab.recordings.phase_names."""
    ranges = trace.annotations
    for mask in _of_families(trace):
        rows = np.flatnonzero(mask)
        rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
        spans = np.stack([ranges.start_ns[rows], ranges.end_ns[rows]], axis=1)
        if (spans[1:, 0] >= spans[:-1, 1]).all():
            return spans, [trace.strings[index] for index in ranges.name_id[rows].tolist()]
    return np.empty((0, 2), dtype=np.int64), []


def step_at(edges_ns: np.ndarray, times_ns: np.ndarray) -> np.ndarray:
    """The step (n,) that each time lies in, of steps (m, 2) by start that do not overlap; -1 for none."""
    if not len(edges_ns):
        return np.full(len(times_ns), -1)
    step = np.searchsorted(edges_ns[:, 0], times_ns, side="right") - 1
    inside = (step >= 0) & (times_ns < edges_ns[np.maximum(step, 0), 1])
    steps: np.ndarray = np.where(inside, step, -1)
    return steps


def steps_overlap(work: Work) -> bool:
    """Whether steps are marked, and none can be a unit because they overlap."""
    return not len(work.steps_ns) and bool(_of_families(work.trace))


def _of_families(trace: Capture) -> list[np.ndarray]:
    """A mask over the ranges for each kind of step on the CPU, profiler steps first, then the most."""
    name_id = trace.annotations.name_id
    ids_of: dict[str, list[int]] = defaultdict(list)
    for index in set(np.unique(name_id).tolist()) - {-1}:
        if family := step_family(trace.strings[index]):
            ids_of[family].append(index)
    masks = [(family, np.isin(name_id, ids)) for family, ids in ids_of.items()]
    masks.sort(key=lambda item: (not item[0].startswith("ProfilerStep"), -int(item[1].sum()), item[0]))
    return [mask for _, mask in masks]
