"""What each replay made and each captured graph or eager forward launched, in order and by name."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np

from lab.recordings import calls
from lab.recordings.calls import FOREVER, capture_of_call, capture_windows, has_row
from lab.recordings.capture import GRAPH, KERNEL, MEMCPY, MEMSET, OP, Capture, Strings
from lab.recordings.graphs.frames import Frames, layers_of
from lab.recordings.graphs.sources import Source
from lab.recordings.names import kernel_class
from lab.recordings.owners import operators_of_launches
from lab.stats.columns import per_distinct

# ROCm fills and copies with kernels, CUDA with rows of their own: on both sides one word.
COPY, FILL = "[copy]", "[fill]"


class Words(Strings):
    """Numbers of texts, shared by all recordings of one join; "" is -1."""

    def __init__(self) -> None:
        super().__init__()
        self[""] = -1

    def of(self, texts: Many[str], ids: np.ndarray) -> np.ndarray:
        """Words (n,) of string ids (n,): of a kernel's name."""
        return per_distinct(ids, lambda index: self[plain(texts[index]) if index >= 0 else ""])


def plain(name: str) -> str:
    """A kernel's name; all copies are one word, and so are all fills."""
    kind = kernel_class(name)
    return COPY if kind == "memcpy" else FILL if kind == "memset" else name


def words_of_rows(capture: Capture, words: Words) -> np.ndarray:
    """The word (n,) of each GPU operation."""
    named = words.of(capture.strings, capture.ops.name_id)
    named_copies = np.where(capture.ops.kind == MEMCPY, words[COPY], named)
    return np.where(capture.ops.kind == MEMSET, words[FILL], named_copies)


def with_inferred_names(
    graphs: list[Sequence], forwards: list[Sequence], sources: tuple[Source, ...]
) -> list[Sequence]:
    """CUDA names no kernel at capture: take the one that the same operator launched eagerly, if only one."""
    if not any((sequence.words < 0).any() for sequence in graphs):
        return graphs
    words_of_key: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for sequence in forwards:
        for key, word in zip(_places_in_ops(sequence, sources), sequence.words.tolist(), strict=True):
            words_of_key[key].add(word)
    named = []
    for sequence in graphs:
        keys = _places_in_ops(sequence, sources)
        words = sequence.words.copy()
        for row in np.flatnonzero(words < 0).tolist():
            names = words_of_key.get(keys[row], set())
            words[row] = next(iter(names)) if len(names) == 1 and keys[row] else -1
        named.append(replace(sequence, words=words))
    return named


def _places_in_ops(sequence: Sequence, sources: tuple[Source, ...]) -> list[tuple[str, ...]]:
    """(operator, its shapes, which of its launches) of each launch; () without an operator."""
    capture = sources[sequence.source].capture
    ranges, count = capture.ranges, defaultdict[int, int](int)
    keys: list[tuple[str, ...]] = []
    for row in sequence.op.tolist():
        if row < 0:
            keys.append(())
            continue
        texts = (capture.name(int(getattr(ranges, name)[row])) for name in ("name_id", "dims_id", "types_id"))
        keys.append((*texts, str(count[row])))
        count[row] += 1
    return keys


CAPTURED, EAGER = "capture", "eager run"
_BATCH = re.compile(r"capture_(\d+)_(\w+)\Z")
_COMPILED = re.compile(r"## Call CompiledFxGraph ")
GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
# A trace may hold many different ranges; a forward of the replay's length is among the nearest in length.
MAX_EAGER = 128


@dataclass(frozen=True)
class Sequence:
    """Launches in order, columns (m,). source: index of its recording; number: of its window there.

    words: names, -1 unknown (CUDA records none at capture); kinds: of capture.KERNEL and so on; api: the
    call's name id; op: row of that recording's `ranges`, or -1; geometry (m, 6), -1 unknown; modules: paths.
    batch: for how many sequences it was captured, None unknown.
    """

    source: int
    number: int
    origin: str
    batch: int | None
    words: np.ndarray
    kinds: np.ndarray
    api: np.ndarray
    call: np.ndarray
    op: np.ndarray
    geometry: np.ndarray
    modules: list[tuple[str, ...]]
    layers: list[str]

    def __len__(self) -> int:
        return len(self.words)


def captured(
    capture: Capture, source: int, words: Words, frames: Frames | None, batch: int | None
) -> tuple[list[Sequence], list[str]]:
    """The graphs that were captured while this was recorded, by start; and what was odd about them."""
    windows = capture_windows(capture)
    if not len(windows):  # the usual recording: spare it the join below
        return [], []
    launches = np.isin(calls.call_kinds(capture), (calls.LAUNCH, calls.COPY, calls.FILL)) & ~has_row(capture)
    order = np.argsort(capture.api.start_ns, kind="stable")
    graphs: list[Sequence] = []
    problems: list[str] = []
    for window in np.argsort(windows[:, 2], kind="stable").tolist():
        process, _, start_ns, end_ns = windows[window].tolist()
        if -start_ns == FOREVER or end_ns == FOREVER:
            edge = "end" if end_ns == FOREVER else "begin"
            problems.append(f"a stream capture has no {edge} in the recording: the graph is not used")
            continue
        rows = order[(launches & (capture_of_call(capture) == window))[order]]
        if not len(rows):
            continue
        api, kind = capture.api.take(rows), calls.call_kinds(capture)[rows]
        special, named = [kind == calls.COPY, kind == calls.FILL], words.of(capture.strings, api.kernel_id)
        graph = _sequence(
            capture,
            source,
            rows,
            api.external_id,
            words=np.select(special, [words[COPY], words[FILL]], named),
            kinds=np.select(special, [MEMCPY, MEMSET], KERNEL),
            geometry=np.full((len(rows), 6), -1),
        )
        size = _labelled_batch(capture, process, start_ns) if batch is None else batch
        graphs.append(replace(graph, number=len(graphs), origin=CAPTURED, batch=size))
    return _in_model(capture, graphs, frames), problems


def _labelled_batch(capture: Capture, process: int, start_ns: int) -> int | None:
    """The batch size of the range `capture_32_FULL` around a window, as serving frameworks name it."""
    ranges = capture.ranges
    around = (ranges.process == process) & (ranges.kind != OP)
    around &= (ranges.start_ns <= start_ns) & (ranges.end_ns >= start_ns)
    for row in np.flatnonzero(around).tolist():
        if match := _BATCH.match(capture.name(int(ranges.name_id[row]))):
            # Nine digits at most: int() of a hostile name takes quadratic time.
            return int(match[1][:9])
    return None


def _sequence(
    capture: Capture, source: int, call: np.ndarray, external_id: np.ndarray, **columns: np.ndarray
) -> Sequence:
    """The launches that these calls (rows of `api`) made: an eager run of unknown modules."""
    return Sequence(
        source=source,
        number=0,
        origin=EAGER,
        batch=None,
        api=capture.api.name_id[call],
        call=call,
        op=_operators(capture, external_id, call),
        modules=[()] * len(call),
        layers=[""] * len(call),
        **columns,
    )


def eager(capture: Capture, source: int, words: Words, frames: Frames | None, near: int) -> list[Sequence]:
    """Forwards that were launched one by one: what each range of the program launched, and all of it.

    near: the length of the replay that is looked for; the MAX_EAGER nearest in length, and the whole.
    """
    call = calls.launch_calls(capture)
    alone = ~calls.in_graph(capture) & (call >= 0) & (capture.ops.kind != GRAPH)
    rows = np.flatnonzero(alone)
    rows = rows[np.lexsort((capture.ops.start_ns[rows], capture.api.start_ns[call[rows]]))]
    if not len(rows):
        return []
    ops, at_ns = capture.ops.take(rows), capture.api.start_ns[call[rows]]
    forward = _sequence(
        capture,
        source,
        call[rows],
        ops.external_id,
        words=words_of_rows(capture, words)[rows],
        kinds=ops.kind.astype(np.int64),
        geometry=np.stack([getattr(ops, name) for name in GEOMETRY], axis=1),
    )
    (forward,) = _in_model(capture, [forward], frames)
    ranges = capture.ranges.where(capture.ranges.kind != OP)
    low, high = (np.searchsorted(at_ns, ns) for ns in (ranges.start_ns, ranges.end_ns))
    spans = zip(low[high > low].tolist(), high[high > low].tolist(), strict=True)
    distinct = _distinct(capture, forward, [(0, len(rows)), *spans])
    # A replay is one forward, so ranges that launched about as much are tried, nearest first.
    nearest = sorted(distinct, key=lambda span: (abs(span[1] - span[0] - near), span))[:MAX_EAGER]
    nearest = list(dict.fromkeys([*nearest, (0, len(rows))]))
    return [_part(forward, number, low, high) for number, (low, high) in enumerate(nearest)]


def _distinct(capture: Capture, forward: Sequence, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """One span of each kind: steps repeat the same launches of the same operators, shapes and modules."""
    ids = [np.append(getattr(capture.ranges, name), -1)[forward.op] for name in ("name_id", "dims_id")]
    paths: dict[tuple[str, ...], int] = {}
    module = np.array([paths.setdefault(path, len(paths)) for path in forward.modules], dtype=np.int64)
    rows = np.column_stack([forward.words, *ids, module, forward.geometry]).astype(np.int64)
    spans_by_content: dict[bytes, tuple[int, int]] = {}
    for low, high in spans:
        # By digest: as keys the rows would hold the whole recording once more.
        spans_by_content.setdefault(hashlib.blake2b(rows[low:high].tobytes()).digest(), (low, high))
    return list(spans_by_content.values())


def _part(forward: Sequence, number: int, low: int, high: int) -> Sequence:
    columns = ("words", "kinds", "api", "call", "op", "geometry", "modules", "layers")
    return replace(forward, number=number, **{name: getattr(forward, name)[low:high] for name in columns})


def _in_model(capture: Capture, several: list[Sequence], frames: Frames | None) -> list[Sequence]:
    """Sequences of one recording with their modules and layers; each may be a piece of the model."""
    if several and frames is not None and len(frames.table):
        api = capture.api.take(np.concatenate([one.call for one in several]))
        paths = iter(frames.modules(api.pid, api.tid, api.start_ns))
        several = [replace(one, modules=[next(paths) for _ in one.modules]) for one in several]
    layers = iter(layers_of([path for one in several for path in one.modules]))
    layered = [replace(one, layers=[next(layers) for _ in one.modules]) for one in several]
    if any(any(one.layers) for one in layered):
        return layered
    return [replace(one, layers=_compiled_calls(capture, one)) for one in several]


def _compiled_calls(capture: Capture, sequence: Sequence) -> list[str]:
    """In a compiled model the i-th call of a compiled graph stands for the layer; "" where there is one."""
    ranges, at_ns = capture.ranges, capture.api.start_ns[sequence.call]
    is_compiled = capture.by_text(lambda text: _COMPILED.match(text) is not None, ranges.name_id)
    rows = np.flatnonzero(is_compiled & (ranges.kind != OP))
    if len(at_ns):
        rows = rows[(ranges.end_ns[rows] >= at_ns.min()) & (ranges.start_ns[rows] <= at_ns.max())]
    if len(rows) < 2 or not len(at_ns):
        return [""] * len(sequence)
    index = np.searchsorted(np.sort(ranges.start_ns[rows]), at_ns, side="right") - 1
    return [f"CompiledFxGraph_{number}" if number >= 0 else "" for number in index.tolist()]


def _operators(capture: Capture, external_id: np.ndarray, call: np.ndarray) -> np.ndarray:
    """Row of `ranges` (n,) of the operator that made each call (row of `api`); -1 for none."""
    api = capture.api.take(call)
    op, _ = operators_of_launches(capture.operators, external_id, api.pid, api.tid, api.start_ns)
    rows: np.ndarray = np.append(capture.operator_rows, -1)[op]
    return rows
