"""From a recording with graph replays, and those beside it, to the operator of each replayed kernel."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

import numpy as np

from lab.recordings.capture import Capture
from lab.recordings.graphs import calls
from lab.recordings.graphs.fit import Fit, Pattern, fit, products_agree
from lab.recordings.graphs.frames import class_of
from lab.recordings.graphs.replays import COPY, FILL, Replays, Words, replays_of, words_of_rows
from lab.recordings.graphs.sequences import CAPTURED, Sequence, captured, eager
from lab.recordings.graphs.sources import Source
from lab.recordings.lacks import Lack
from lab.recordings.views.launches import launches_graph

RULES = ("none", "external_id", "correlation", "node", "order", "name")
NONE, EXTERNAL_ID, CORRELATION, NODE, ORDER, NAME = range(len(RULES))
# unknown: the place in the graph is not certain; none: no layers were recorded, or nothing is known.
LAYER_RULES = ("none", "external_id", "correlation", "node", "order", "unknown")
LAYER_UNKNOWN = LAYER_RULES.index("unknown")
# exact: the whole sequence is equal; certain: rows are missing, this one has one place only; count: the
# capture recorded no names; name: by the kernel's name alone.
CONFIDENCES = ("", "exact", "certain", "count", "name")

_EXECUTED = re.compile(r"execute_(\d{1,9})_context")
_GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
MAX_TIES = 256


@dataclass(frozen=True)
class Rows:
    """What is known of each row, columns (n,); indices of RULES, LAYER_RULES, CONFIDENCES and `Join.texts`.

    source: index of `Join.sources`, op: row of its `ranges` whose arguments are those of the call, or -1;
    call: row of its `api` that launched the row at capture, -1 where the place is not certain.
    """

    rule: np.ndarray
    layer_rule: np.ndarray
    confidence: np.ndarray
    source: np.ndarray
    op: np.ndarray
    call: np.ndarray
    op_name: np.ndarray
    module: np.ndarray
    layer: np.ndarray


@dataclass(frozen=True)
class Join:
    """The GPU rows of `sources[0]` that a graph replayed, with their operators.

    inside: mask (n,) of `ops`. rows: columns (n,); -1 and `none` outside graphs. fits: of each replay, None
    where nothing fits. problems: sentences, refused captures among them.
    """

    sources: tuple[Source, ...]
    inside: np.ndarray
    rows: Rows
    texts: list[str]
    replays: Replays
    fits: tuple[Fit | None, ...]
    patterns: tuple[Pattern, ...]
    problems: list[str] = field(default_factory=list)

    @property
    def unattributed(self) -> tuple[int, int]:
        """Number and ns of replayed rows without an operator."""
        lost = self.inside & (self.rows.rule == NONE)
        ops = self.sources[0].capture.ops
        return int(lost.sum()), int((ops.end_ns - ops.start_ns)[lost].sum())

    def counts(self) -> dict[str, tuple[int, int]]:
        """Rows in graphs and their ns, by rule; rules without a row are left out."""
        ops = self.sources[0].capture.ops
        dur_ns = ops.end_ns - ops.start_ns
        found = {}
        for index, rule in enumerate(RULES):
            mine = self.inside & (self.rows.rule == index)
            if mine.any():
                found[rule] = (int(mine.sum()), int(dur_ns[mine].sum()))
        return found

    def lacks(self) -> tuple[Lack, ...]:
        """Rule R: rows that replays lack."""
        from lab.recordings.graphs.loss import lacks_of

        return lacks_of(self)


def executed_batches(capture: Capture) -> list[int | None]:
    """The batch size of each graph launch (`execute_32_context_...`), each once; None if unknown."""
    call = np.flatnonzero(calls.calls_that(capture, launches_graph))
    return sorted(set(_batches(capture, call)), key=lambda one: -1 if one is None else one)


def join(own: Source, beside: Many[Source] = ()) -> Join:
    """Match every replay in `own` with the captures and eager runs in `own` and `beside`. Reads no file."""
    capture = own.capture
    call = calls.call_of(capture)
    inside = calls.in_graph(capture, call)
    replays = replays_of(capture, call, inside)
    sources = (own, *beside)
    joiner = _Joiner(sources, replays)
    return joiner.joined(inside)


class _Joiner:
    def __init__(self, sources: tuple[Source, ...], replays: Replays) -> None:
        self.sources, self.replays, self.words = sources, replays, Words()
        self.capture = sources[0].capture
        self.texts: dict[str, int] = {"": 0}
        self.problems: list[str] = []
        self.accepted: set[int] = set()
        self.reasons: dict[int, list[tuple[str, str]]] = defaultdict(list)
        self._tried: dict[tuple[tuple[bytes, ...], int, int, str], Fit | str] = {}
        self._by_batch: dict[int, list[Sequence]] = {}
        self.patterns = self._patterns()
        self.graphs: list[Sequence] = []
        self.forwards: list[Sequence] = []
        if len(replays):
            self._read_sources()

    def _patterns(self) -> tuple[Pattern, ...]:
        ops = self.capture.ops
        words = words_of_rows(self.capture, self.words) if len(self.replays) else np.empty(0, dtype=np.int64)
        geometry = np.stack([getattr(ops, name) for name in _GEOMETRY], axis=1)
        # CUDA gives the graph's number in the upper half.
        node = np.where(ops.graph_node > 0, ops.graph_node & 0xFFFFFFFF, -1)
        found = []
        for index in range(len(self.replays)):
            rows = self.replays.of(index)
            found.append(Pattern(words[rows], ops.stream[rows], node[rows], geometry[rows]))
        return tuple(found)

    def _read_sources(self) -> None:
        longest = max(map(len, self.patterns))
        for index, source in enumerate(self.sources):
            graphs, problems = captured(source.capture, index, self.words, source.frames, source.batch)
            self.graphs += graphs
            self.problems += [f"{source.path.name}: {text}" for text in problems]
            self.forwards += eager(source.capture, index, self.words, source.frames, longest)
        self.graphs = _with_inferred_names(self.graphs, self.forwards, self.sources)

    def joined(self, inside: np.ndarray) -> Join:
        size = len(self.capture.ops)
        rows = _no_rows(size)
        batches = _batches(self.capture, self.replays.call)
        pinned = self._pinned(batches)
        fits: list[Fit | None] = []
        made: dict[object, tuple[Rows, Fit | None]] = {}
        for index, pattern in enumerate(self.patterns):
            key = (pattern.key, batches[index], pinned.get(index))
            if key not in made:
                made[key] = self._attributed(pattern, batches[index], pinned.get(index))
            found, best = made[key]
            fits.append(best)
            for name in Rows.__dataclass_fields__:
                getattr(rows, name)[self.replays.of(index)] = getattr(found, name)
        self._note_refused()
        return Join(
            sources=self.sources,
            inside=inside,
            rows=rows,
            texts=list(self.texts),
            replays=self.replays,
            fits=tuple(fits),
            patterns=self.patterns,
            problems=self.problems,
        )

    def _try(self, pattern: Pattern, sequence: Sequence) -> Fit | str:
        key = (
            pattern.key,
            sequence.source,
            sequence.number,
            sequence.origin + sequence.label + str(len(sequence)),
        )
        if key not in self._tried:
            found = fit(pattern, sequence, self.words)
            if isinstance(found, Fit) and found.by == "count":
                names = self._op_names(sequence, sequence.op)
                if not products_agree(pattern, found, names, self.words):
                    found = "the number of launches agrees, but matrix products would own other kernels"
            self._tried[key] = found
            if isinstance(found, str):
                self.reasons[sequence.source].append((sequence.origin, found))
            else:
                self.accepted.add(sequence.source)
        return self._tried[key]

    def _best(self, pattern: Pattern, sequences: Many[Sequence]) -> list[Fit]:
        """The fits that cannot be told apart, of the best rank."""
        found = [one for one in (self._try(pattern, one) for one in sequences) if isinstance(one, Fit)]
        best = min((one.rank for one in found), default=None)
        ties = [one for one in found if one.rank == best]
        return sorted(ties, key=lambda one: not any(one.sequence.modules))[:MAX_TIES]

    def _of_batch(self, batch: int | None) -> list[Sequence]:
        """Captured graphs that a server may replay for a batch: of the smallest size that is large enough."""
        if batch is None:
            return self.graphs
        if batch in self._by_batch:
            return self._by_batch[batch]
        large = [one.batch for one in self.graphs if one.batch is not None and one.batch >= batch]
        for one in self.graphs:
            if one.batch is not None and one.batch < batch:
                why = f"captured for batch {one.batch}, {batch} were executed"
                self.reasons[one.source].append((CAPTURED, why))
        smallest = min(large, default=None)
        found = [one for one in self.graphs if one.batch is None or one.batch == smallest]
        self._by_batch[batch] = found
        return found

    def _pinned(self, batches: list[int | None]) -> dict[int, tuple[int, int]]:
        """Replay -> (source, window) where a step replays all windows of a capture, one after the other."""
        groups: dict[object, list[int]] = defaultdict(list)
        for index, where in enumerate(_steps(self.capture, self.replays.call)):
            groups[where].append(index)
        found: dict[int, tuple[int, int]] = {}
        by_source: dict[tuple[int, int | None], list[Sequence]] = defaultdict(list)
        for one in self.graphs:
            by_source[one.source, one.batch].append(one)
        for members in groups.values():
            allowed = {id(one) for one in self._of_batch(batches[members[0]])}
            for windows in by_source.values():
                if len(windows) < 2 or len(windows) != len(members) or id(windows[0]) not in allowed:
                    continue
                tried = [
                    self._try(self.patterns[index], one) for index, one in zip(members, windows, strict=True)
                ]
                if all(isinstance(one, Fit) for one in tried):
                    for index, one in zip(members, windows, strict=True):
                        found[index] = (one.source, one.number)
        return found

    def _attributed(
        self, pattern: Pattern, batch: int | None, pinned: tuple[int, int] | None
    ) -> tuple[Rows, Fit | None]:
        graphs = self._of_batch(batch)
        if pinned is not None:
            graphs = [one for one in graphs if (one.source, one.number) == pinned]
        ties = self._best(pattern, graphs)
        with_modules = any(any(one.modules) for one in self.forwards)
        forwards = self._best(pattern, self.forwards) if with_modules or not ties else []
        if not ties:
            ties, forwards = forwards, []
        if not ties:
            return self._by_own_names(pattern), None
        rows = self._agreed(pattern, ties)
        if forwards:
            rows = self._with_modules(rows, self._agreed(pattern, forwards))
        return rows, ties[0]

    def _rows_of(self, pattern: Pattern, found: Fit) -> Rows:
        """The rows of one replay by one fit: certain ones by place, others by name."""
        sequence, sure = found.sequence, found.places.sure
        at = np.where(sure, found.places.first, 0)
        names = self._texts(self._op_names(sequence, sequence.op))
        modules = self._texts([".".join(path) for path in sequence.modules])
        layers = self._texts(sequence.layers)
        owned = sure & (sequence.op[at] >= 0)
        exact = found.num_missing == 0 and found.places.num_matched == len(pattern)
        confidence = CONFIDENCES.index("count" if found.by == "count" else "exact" if exact else "certain")
        rule = NODE if found.by == "node" else ORDER
        known_layer = sure & (layers[at] > 0)
        rows = Rows(
            rule=np.where(owned, rule, NONE),
            layer_rule=np.where(known_layer, rule, 0),
            confidence=np.where(owned, confidence, 0),
            source=np.where(sure, sequence.source, -1),
            call=np.where(sure, sequence.call[at], -1),
            op=np.where(owned, sequence.op[at], -1),
            op_name=np.where(owned, names[at], 0),
            module=np.where(sure, modules[at], 0),
            layer=np.where(known_layer, layers[at], 0),
        )
        self._drop_other_shapes(pattern, found, rows)
        self._by_name(pattern, found, rows, names, any(sequence.layers))
        return rows

    def _drop_other_shapes(self, pattern: Pattern, found: Fit, rows: Rows) -> None:
        """Of a row with another grid than its launch, the operator is right and its shapes are not."""
        sure = np.flatnonzero(found.places.sure)
        mine, theirs = pattern.geometry[sure], found.sequence.geometry[found.places.first[sure]]
        other = (mine[:, 0] > 0) & (theirs[:, 0] > 0) & (mine != theirs).any(axis=1)
        rows.op[sure[other]] = -1

    def _by_name(self, pattern: Pattern, found: Fit, rows: Rows, names: np.ndarray, layered: bool) -> None:
        """Rows without a certain place: what all launches of their name have in common, where they may be."""
        sequence, known = found.sequence, {}
        for row in np.flatnonzero(~found.places.sure).tolist():
            low, high = int(found.places.first[row]), int(found.places.last[row])
            key = (int(pattern.words[row]), low, high)
            if key not in known:
                known[key] = self._common(sequence, names, *key)
            name, module, op = known[key]
            if name:
                rows.rule[row], rows.confidence[row] = NAME, CONFIDENCES.index("name")
                rows.op_name[row], rows.module[row] = name, module
                rows.op[row], rows.source[row] = op, sequence.source
            rows.layer_rule[row] = LAYER_UNKNOWN if layered else 0

    def _common(
        self, sequence: Sequence, names: np.ndarray, word: int, low: int, high: int
    ) -> tuple[int, int, int]:
        """(operator, module, row with its arguments) of all launches of a name between two places."""
        at = np.flatnonzero(sequence.words == word)
        if low >= 0:
            at = at[(at >= low) & (at <= high)]
        if not len(at) or len(set(names[at].tolist())) > 1 or (sequence.op[at] < 0).any():
            return 0, 0, -1
        paths = {tuple(map(class_of, sequence.modules[index])) for index in at.tolist()}
        module = self._text(".".join(paths.pop())) if len(paths) == 1 else 0
        shapes = {self._shape(sequence.source, int(row)) for row in sequence.op[at].tolist()}
        return int(names[at[0]]), module, int(sequence.op[at[0]]) if len(shapes) == 1 else -1

    def _shape(self, source: int, row: int) -> tuple[int, ...]:
        ranges = self.sources[source].capture.ranges
        return tuple(
            int(getattr(ranges, name)[row]) for name in ("dims_id", "types_id", "strides_id", "concrete_id")
        )

    def _agreed(self, pattern: Pattern, ties: list[Fit]) -> Rows:
        """What all fits of one rank say; where they differ the row is known less well, or not at all.

        Those with modules come first: a recording without modules does not contradict them.
        """
        first = self._rows_of(pattern, ties[0])
        for tie in ties[1:]:
            other = self._rows_of(pattern, tie)
            if not any(tie.sequence.modules) and any(ties[0].sequence.modules):
                other = replace(other, module=first.module.copy(), layer=first.layer.copy())
            self._weaken(first, other)
        return first

    def _weaken(self, rows: Rows, other: Rows) -> None:
        apart = rows.op_name != other.op_name
        for name, empty in (("rule", NONE), ("confidence", 0), ("op", -1), ("op_name", 0)):
            getattr(rows, name)[apart] = empty
        rows.call[(rows.call != other.call) | (rows.source != other.source)] = -1
        rows.module[apart] = rows.layer[apart] = 0
        texts = list(self.texts)
        modules = np.flatnonzero((rows.module != other.module) & ~apart)
        for row in modules.tolist():
            paths = [texts[int(one.module[row])].split(".") for one in (rows, other)]
            mine, theirs = (".".join(map(class_of, path)) for path in paths)
            rows.module[row] = self._text(mine) if mine == theirs else 0
        unsure = (rows.layer != other.layer) | np.isin(np.arange(len(apart)), modules)
        rows.layer_rule[unsure & (rows.layer_rule > 0)] = LAYER_UNKNOWN
        rows.layer[unsure] = 0
        for row in np.flatnonzero((rows.op >= 0) & (other.op >= 0)).tolist():
            shapes = [self._args(int(one.source[row]), int(one.op[row])) for one in (rows, other)]
            if shapes[0] != shapes[1]:
                rows.op[row] = -1
        rows.op[other.op < 0] = -1

    def _args(self, source: int, row: int) -> tuple[str, ...]:
        capture = self.sources[source].capture
        return tuple(capture.name(index) for index in self._shape(source, row))

    def _with_modules(self, rows: Rows, eager_rows: Rows) -> Rows:
        """Modules of an eager run for the rows that agree with it in their operator, where none is known."""
        take = (rows.module == 0) & (eager_rows.module > 0) & (rows.op_name == eager_rows.op_name)
        module = np.where(take, eager_rows.module, rows.module)
        layer = np.where(take & (rows.layer == 0), eager_rows.layer, rows.layer)
        layer_rule = np.where(take & (rows.layer == 0), eager_rows.layer_rule, rows.layer_rule)
        return replace(rows, module=module, layer=layer, layer_rule=layer_rule)

    def _by_own_names(self, pattern: Pattern) -> Rows:
        """Without a capture: the operator that launches kernels of this name elsewhere in the same run."""
        rows = _no_rows(len(pattern))
        known = self._own_names()
        for index, word in enumerate(pattern.words.tolist()):
            if name := known.get(word, 0):
                rows.rule[index], rows.confidence[index] = NAME, CONFIDENCES.index("name")
                rows.op_name[index] = name
        return rows

    def _own_names(self) -> dict[int, int]:
        if not hasattr(self, "_names"):
            found: dict[int, set[int]] = defaultdict(set)
            for one in self.forwards:
                if one.source == 0:
                    names = self._texts(self._op_names(one, one.op))
                    for word, name in zip(one.words.tolist(), names.tolist(), strict=True):
                        found[word].add(name)
            self._names = {
                word: next(iter(names))
                for word, names in found.items()
                if len(names) == 1 and word >= 0 and self.words.list[word] not in (COPY, FILL)
            }
        return self._names

    def _op_names(self, sequence: Sequence, rows: np.ndarray) -> list[str]:
        capture = self.sources[sequence.source].capture
        ids = np.append(capture.ranges.name_id, -1)[rows]
        return [capture.name(int(index)) for index in ids]

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def _texts(self, texts: Many[str]) -> np.ndarray:
        return np.array([self._text(text) for text in texts], dtype=np.int64)

    def _note_refused(self) -> None:
        """A given capture that no replay fits is refused, with the reason."""
        for index, source in enumerate(self.sources):
            if index == 0 or index in self.accepted:
                continue
            if not len(self.replays):
                why = "the recording has no graph replays"
            elif reasons := self.reasons.get(index):
                of_graphs = [text for origin, text in reasons if origin == CAPTURED]
                texts = of_graphs or [text for _, text in reasons]
                why = max(dict.fromkeys(texts), key=texts.count)
            else:
                why = "it holds neither a captured graph nor eager launches"
            self.problems.append(
                f"capture {source.path.name} is not of these replays and was not used: {why}"
            )


def _no_rows(size: int) -> Rows:
    def full(value: int) -> np.ndarray:
        return np.full(size, value, dtype=np.int64)

    return Rows(
        rule=full(NONE),
        layer_rule=full(0),
        confidence=full(0),
        source=full(-1),
        op=full(-1),
        call=full(-1),
        op_name=full(0),
        module=full(0),
        layer=full(0),
    )


def _with_inferred_names(
    graphs: list[Sequence], forwards: list[Sequence], sources: tuple[Source, ...]
) -> list[Sequence]:
    """CUDA names no kernel at capture: take the one that the same operator launched eagerly, if only one."""
    if not any((one.words < 0).any() for one in graphs):
        return graphs
    known: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for one in forwards:
        for key, word in zip(_places_in_ops(one, sources), one.words.tolist(), strict=True):
            known[key].add(word)
    found = []
    for one in graphs:
        keys = _places_in_ops(one, sources)
        words = one.words.copy()
        for row in np.flatnonzero(words < 0).tolist():
            names = known.get(keys[row], set())
            words[row] = next(iter(names)) if len(names) == 1 and keys[row] else -1
        found.append(replace(one, words=words))
    return found


def _places_in_ops(one: Sequence, sources: tuple[Source, ...]) -> list[tuple[str, ...]]:
    """(operator, its shapes, which of its launches) of each launch; () without an operator."""
    capture = sources[one.source].capture
    ranges, count = capture.ranges, defaultdict[int, int](int)
    keys: list[tuple[str, ...]] = []
    for row in one.op.tolist():
        if row < 0:
            keys.append(())
            continue
        texts = (capture.name(int(getattr(ranges, name)[row])) for name in ("name_id", "dims_id", "types_id"))
        keys.append((*texts, str(count[row])))
        count[row] += 1
    return keys


def _batches(capture: Capture, call: np.ndarray) -> list[int | None]:
    """The batch of each graph launch (r,): of the `execute_<n>_context` range around it, None without one."""
    sizes = [_EXECUTED.match(text) for text in capture.strings]
    size = np.array([*(int(match[1]) if match else -1 for match in sizes), -1])[capture.ranges.name_id]
    rows = np.flatnonzero(size >= 0)
    found = _around(capture, call, rows)
    return [int(size[row]) if row >= 0 else None for row in found.tolist()]


def _steps(capture: Capture, call: np.ndarray) -> list[object]:
    """The outermost range of the program around each graph launch (r,); None for none."""
    ranges = capture.ranges
    rows = np.flatnonzero(ranges.kind == 0)
    order = rows[np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows]))]
    outer, latest = [], -(1 << 62)
    for row in order.tolist():
        if ranges.end_ns[row] > latest:
            outer.append(row)
            latest = int(ranges.end_ns[row])
    return [
        row if row >= 0 else None for row in _around(capture, call, np.array(outer, dtype=np.int64)).tolist()
    ]


def _around(capture: Capture, call: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which of `rows` (of `ranges`, not nested in each other) lies around each call (r,), or -1."""
    if not len(rows) or not len(call):
        return np.full(len(call), -1, dtype=np.int64)
    rows = rows[np.argsort(capture.ranges.start_ns[rows], kind="stable")]
    at_ns = np.where(call >= 0, np.append(capture.api.start_ns, -1)[call], -1)
    index = np.searchsorted(capture.ranges.start_ns[rows], at_ns, side="right") - 1
    inside = (index >= 0) & (at_ns <= capture.ranges.end_ns[rows[index]]) & (call >= 0)
    return np.where(inside, rows[index], -1)
