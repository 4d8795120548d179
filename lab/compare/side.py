"""One side of a comparison: the ranks of a recording, and the GPU work of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from lab.core.run import MANIFEST
from lab.errors import BadDataError, LabError, MissingError
from lab.recordings.calls import GRAPH_LAUNCH, call_kinds
from lab.recordings.capture import Capture
from lab.recordings.integrity import lost_at_edges
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import Lack, holes
from lab.recordings.load import load_capture
from lab.recordings.names import short_name
from lab.recordings.nsys.export import is_folder
from lab.recordings.phase_names import step_family
from lab.recordings.pieces import start_of
from lab.recordings.processes import rank_captures
from lab.recordings.tables import MEMSET, Table
from lab.recordings.views import MEMCOPY, classify, launch_calls, link_ops
from lab.stats.intervals import NO_SPANS, holding, spans

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
        texts = sentences([lack for lack in self._holes if lack.axis == "gpu"])
        if len(self.perhaps_cut) or not len(self._cut_replays[1]):  # without its call no step acquits it
            unknown = [lack for lack in self.trace.lacks if lack.rule == "R" and lack.unknown]
            texts += sentences([lack for lack in unknown if lack.place == "hole"])
        if self.cut.any() and not self.is_whole_somewhere:
            texts.append("GPU work of every step is missing")
        return [f"{self.trace.source.name}: {text}" for text in texts]

    @property
    def blurred(self) -> list[str]:
        """A sentence for each hole in its launches or operators: ops, phases and modules may be wrong."""
        texts = sentences([lack for lack in self._holes if lack.axis != "gpu"])
        return [f"{self.trace.source.name}: {text}" for text in texts]

    @property
    def _holes(self) -> list[Lack]:
        lost_replays = [lack for lack in self.trace.lacks if lack.rule == "R" and not lack.unknown]
        return list(dict.fromkeys([*holes(self.trace.lacks), *lost_replays]))

    @cached_property
    def order(self) -> np.ndarray:
        """The rows (n,) of the recording's table, by start."""
        rows: np.ndarray = np.argsort(self.trace.ops.start_ns, kind="stable")
        return rows

    @cached_property
    def ops(self) -> Table:
        """The recording's GPU operations, by start."""
        return self.trace.ops.take(self.order)

    @property
    def start_ns(self) -> np.ndarray:
        return self.ops.start_ns

    @cached_property
    def dur_ns(self) -> np.ndarray:
        return self.ops.dur_ns

    @cached_property
    def _call(self) -> np.ndarray:
        """The call that launched each operation (n,), -1 where it was not recorded."""
        calls: np.ndarray = launch_calls(self.trace)[self.order]
        return calls

    @cached_property
    def launched_ns(self) -> np.ndarray:
        """When the CPU launched it; its own start where the launch was not recorded."""
        return np.where(self.launch_known, np.append(self.trace.api.start_ns, 0)[self._call], self.start_ns)

    @property
    def launch_known(self) -> np.ndarray:
        return self._call >= 0

    @cached_property
    def waits_ns(self) -> np.ndarray:
        """(m, 2): the calls in which the host waits for the GPU, by end."""
        calls = self.trace.api.where(self.trace.by_text(is_wait, self.trace.api.name_id))
        by_end: np.ndarray = spans(calls.start_ns, calls.dur_ns)[np.argsort(calls.end_ns, kind="stable")]
        return by_end

    @cached_property
    def classes(self) -> np.ndarray:
        """COMP, COMM or MEMCOPY; fills count as copies: both wait for memory, and neither computes."""
        return np.where(self.ops.kind == MEMSET, MEMCOPY, classify(self.trace)[self.order])

    @cached_property
    def keys(self) -> tuple[list[Key], np.ndarray]:
        """The distinct (op, dims, types, kernel), and the index of each operation's own (n,)."""
        op, operators = link_ops(self.trace)[self.order], self.trace.operators
        ids = [self.ops.name_id]
        for name, column in (
            ("op", operators.name_id),
            ("dims", operators.dims_id),
            ("types", operators.types_id),
        ):
            ids.append(np.full(len(op), -1) if name in self.drop else np.append(column, -1)[op])
        distinct, index_of = np.unique(np.stack(ids, axis=1), axis=0, return_inverse=True)
        text, named = self.trace.name, plain_name if self.plain else kernel_name
        keys = [(text(o), text(d), text(t), named(text(k))) for k, o, d, t in distinct.tolist()]
        return keys, index_of.reshape(-1)

    def is_key(self, rule: Callable[[Key], bool]) -> np.ndarray:
        """The operations (n,) of whose key it holds."""
        keys, key_of = self.keys
        mask: np.ndarray = np.array([rule(key) for key in keys], dtype=bool)[key_of]
        return mask

    def kernel(self, row: int) -> str:
        """The name of one operation's kernel."""
        keys, key_of = self.keys
        return keys[int(key_of[row])][3]

    @cached_property
    def has_op(self) -> np.ndarray:
        """Which operations (n,) have a known op."""
        return self.is_key(lambda key: bool(key[0]))

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
        calls = [self._cut_replays[0], self.perhaps_cut]
        if any(lack.rule == "G" and lack.place in ("head", "tail") for lack in self.trace.lacks):
            calls.append(lost_at_edges(self.trace))
        return self._per_step(np.concatenate(calls)) > 0

    def _per_step(self, calls: np.ndarray) -> np.ndarray:
        """How many of these calls each step (m,) has."""
        step = step_at(self.steps_ns, self.trace.api.start_ns[calls])
        return np.bincount(step + 1, minlength=len(self.steps_ns) + 1)[1:]

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
        replays = self._per_step(np.flatnonzero(call_kinds(self.trace) == GRAPH_LAUNCH))
        additional = [
            step >= 0 and len(replays) > 1 and replays[step] > np.median(np.delete(replays, step))
            for step in step_at(self.steps_ns, self.trace.api.start_ns[calls]).tolist()
        ]
        unexplained: np.ndarray = calls[~np.array(additional, dtype=bool)]
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
        try:
            works += [(file, work) for work in read_works(file)]
        except LabError as error:
            if not _is_of_lab(file, path):
                problems.append(f"{file.relative_to(path)} is left out: {error.problem}")
    if not works:
        formats = f"lab reads {', '.join(RECORDINGS)}, and nsys' folders of Parquet files"
        fix = "; ".join(problems[:2]) or formats
        raise MissingError("no recording in this folder", location=path, fix=fix)
    several = len({work.rank for _, work in works}) < len(works)
    ranks: dict[tuple[str, int], Work] = {}
    for file, work in works:
        key = (configuration_of(file, path) if several else "", work.rank)
        if ranks.setdefault(key, work) is not work:
            earlier = ranks[key].trace.source.relative_to(path)
            raise BadDataError(
                f"two recordings of rank {work.rank}: {earlier} and {file.relative_to(path)}",
                location=path / key[0],
                fix="name a folder that holds one recording per rank, or per configuration and rank",
            )
    return Side(path, ranks, problems)


def configuration_of(file: Path, path: Path) -> str:
    """The folders between, without those that name a rank or the profiler."""
    between = file.relative_to(path).parent.parts
    return "/".join(part for part in between if not RANK.fullmatch(part) and part != "torch_profiler")


def place_text(key: tuple[str, int]) -> str:
    return f"{key[0]}, rank {key[1]}" if key[0] else f"rank {key[1]}"


def _is_of_lab(file: Path, path: Path) -> bool:
    """Whether a file that cannot be read is one that lab itself wrote into a run, and no recording."""
    above = [path, *(parent for parent in file.parents if parent.is_relative_to(path))]
    if not file.name.endswith((".json", ".json.gz")) or not any((run / MANIFEST).is_file() for run in above):
        return False
    start, _ = start_of(file, _SNIFFED)
    return not any(mark in start for mark in (b'"traceEvents"', b'"rocprofiler-sdk-tool"'))


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
    if ranks == [None] and (named := RANK.search(path.name) or RANK.search(path.parent.name)):
        ranks = [int(named[1])]
    elif len({rank for rank in ranks if rank is not None}) < len(ranks):
        ranks = [*range(len(traces))]
    return [Work(rank or 0, trace) for rank, trace in zip(ranks, traces, strict=True)]


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
        marks = ranges.where(mask)
        marks = marks.take(np.argsort(marks.start_ns, kind="stable"))
        if (marks.start_ns[1:] >= marks.end_ns[:-1]).all():
            return spans(marks.start_ns, marks.dur_ns), trace.text(marks.name_id).tolist()
    return NO_SPANS, []


def step_at(edges_ns: np.ndarray, times_ns: np.ndarray) -> np.ndarray:
    """The step (n,) that each time lies in, of steps (m, 2) by start that do not overlap; -1 for none."""
    return holding(edges_ns[:, 0], edges_ns[:, 1], times_ns)


def steps_overlap(work: Work) -> bool:
    """Whether steps are marked, and none can be a unit because they overlap."""
    return not len(work.steps_ns) and bool(_of_families(work.trace))


def _of_families(trace: Capture) -> list[np.ndarray]:
    """A mask over the ranges for each kind of step on the CPU, profiler steps first, then the most."""
    family = trace.by_text(step_family, trace.annotations.name_id, None)
    masks = [(name, family == name) for name in sorted(set(family.tolist()) - {None})]
    masks.sort(key=lambda item: (not item[0].startswith("ProfilerStep"), -int(item[1].sum())))
    return [mask for _, mask in masks]
