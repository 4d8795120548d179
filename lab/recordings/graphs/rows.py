"""What a fit says of each row of a replay, and what several fits say together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lab.recordings.graphs.fit import Fit, Pattern
from lab.recordings.graphs.frames import class_of
from lab.recordings.graphs.sequences import COPY, FILL, Sequence, Words
from lab.recordings.graphs.sources import Source

RULES = ("none", "external_id", "correlation", "node", "order", "name")
NONE, NODE, ORDER, NAME = (RULES.index(rule) for rule in ("none", "node", "order", "name"))
# unknown: the place in the graph is not certain; none: no layers were recorded, or nothing is known.
LAYER_RULES = ("none", "external_id", "correlation", "node", "order", "unknown")
LAYER_UNKNOWN = LAYER_RULES.index("unknown")
# exact: the whole sequence is equal; certain: rows are missing, this one has one place only; count: the
# capture recorded no names; name: by the kernel's name alone.
CONFIDENCES = ("", "exact", "certain", "count", "name")


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


def no_rows(size: int) -> Rows:
    unknown = dict.fromkeys(("source", "op", "call"), -1)
    return Rows(**{name: np.full(size, unknown.get(name, 0)) for name in Rows.__dataclass_fields__})


class RowMaker:
    """Makes Rows of fits; `texts` numbers every operator, module and layer that they name."""

    def __init__(self, sources: tuple[Source, ...], words: Words, forwards: Many[Sequence]) -> None:
        self.sources, self.words, self.forwards = sources, words, forwards
        self.texts: dict[str, int] = {"": 0}

    def rows_of(self, pattern: Pattern, match: Fit) -> Rows:
        """The rows of one replay by one fit: certain ones by place, others by name."""
        sequence, sure = match.sequence, match.places.sure
        position = np.where(sure, match.places.earliest, 0)
        names = self._texts(self.op_names(sequence, sequence.op))
        modules = self._texts([".".join(path) for path in sequence.modules])
        layers = self._texts(sequence.layers)
        owned = sure & (sequence.op[position] >= 0)
        exact = match.num_missing == 0 and match.num_placed == len(pattern)
        confidence = CONFIDENCES.index("count" if match.by == "count" else "exact" if exact else "certain")
        rule = NODE if match.by == "node" else ORDER
        known_layer = sure & (layers[position] > 0)
        rows = Rows(
            rule=np.where(owned, rule, NONE),
            layer_rule=np.where(known_layer, rule, 0),
            confidence=np.where(owned, confidence, 0),
            source=np.where(sure, sequence.source, -1),
            call=np.where(sure, sequence.call[position], -1),
            op=np.where(owned, sequence.op[position], -1),
            op_name=np.where(owned, names[position], 0),
            module=np.where(sure, modules[position], 0),
            layer=np.where(known_layer, layers[position], 0),
        )
        # Another grid than its launch's is another shape; the operator is still right.
        launched, is_same = match.same_grids(pattern)
        rows.op[launched[~is_same]] = -1
        self._by_name(pattern, match, rows, names, any(sequence.layers))
        return rows

    def _by_name(self, pattern: Pattern, match: Fit, rows: Rows, names: np.ndarray, layered: bool) -> None:
        """Rows without a certain place: what all launches of their name have in common, where they may be."""
        sequence, cache = match.sequence, {}
        for row in np.flatnonzero(~match.places.sure).tolist():
            low, high = int(match.places.earliest[row]), int(match.places.latest[row])
            key = (int(pattern.words[row]), low, high)
            if key not in cache:
                cache[key] = self._common(sequence, names, *key)
            name, module, op = cache[key]
            if name:
                rows.rule[row], rows.confidence[row] = NAME, CONFIDENCES.index("name")
                rows.op_name[row], rows.module[row] = name, module
                rows.op[row], rows.source[row] = op, sequence.source
            rows.layer_rule[row] = LAYER_UNKNOWN if layered else 0

    def _common(
        self, sequence: Sequence, names: np.ndarray, word: int, low: int, high: int
    ) -> tuple[int, int, int]:
        """(operator, module, row with its arguments) of all launches of a name between two places."""
        positions = np.flatnonzero(sequence.words == word)
        if low >= 0:
            positions = positions[(positions >= low) & (positions <= high)]
        if (
            not len(positions)
            or len(set(names[positions].tolist())) > 1
            or (sequence.op[positions] < 0).any()
        ):
            return 0, 0, -1
        paths = {tuple(map(class_of, sequence.modules[index])) for index in positions.tolist()}
        module = self._text(".".join(paths.pop())) if len(paths) == 1 else 0
        shapes = {self._args(sequence.source, row) for row in sequence.op[positions].tolist()}
        return int(names[positions[0]]), module, int(sequence.op[positions[0]]) if len(shapes) == 1 else -1

    def agreed(self, pattern: Pattern, ties: list[Fit]) -> Rows:
        """Merge all fits of one rank; where they differ, the row is known less well or not at all.

        Those with modules come first: a recording without modules does not contradict them.
        """
        agreed_rows = self.rows_of(pattern, ties[0])
        for tie in ties[1:]:
            tie_rows = self.rows_of(pattern, tie)
            if not any(tie.sequence.modules) and any(ties[0].sequence.modules):
                tie_rows = replace(tie_rows, module=agreed_rows.module.copy(), layer=agreed_rows.layer.copy())
            self._weaken(agreed_rows, tie_rows)
        return agreed_rows

    def _weaken(self, rows: Rows, tie_rows: Rows) -> None:
        # Fits that differ make a row less certain; none of them wins.
        apart = rows.op_name != tie_rows.op_name
        for name, empty in (("rule", NONE), ("confidence", 0), ("op", -1), ("op_name", 0)):
            getattr(rows, name)[apart] = empty
        rows.call[(rows.call != tie_rows.call) | (rows.source != tie_rows.source)] = -1
        rows.module[apart] = rows.layer[apart] = 0
        texts = list(self.texts)
        modules = np.flatnonzero((rows.module != tie_rows.module) & ~apart)
        for row in modules.tolist():
            paths = [texts[int(one.module[row])].split(".") for one in (rows, tie_rows)]
            module, tie_module = (".".join(map(class_of, path)) for path in paths)
            rows.module[row] = self._text(module) if module == tie_module else 0
        unsure = (rows.layer != tie_rows.layer) | np.isin(np.arange(len(apart)), modules)
        rows.layer_rule[unsure & (rows.layer_rule > 0)] = LAYER_UNKNOWN
        rows.layer[unsure] = 0
        for row in np.flatnonzero((rows.op >= 0) & (tie_rows.op >= 0)).tolist():
            shapes = [self._args(int(one.source[row]), int(one.op[row])) for one in (rows, tie_rows)]
            if shapes[0] != shapes[1]:
                rows.op[row] = -1
        rows.op[tie_rows.op < 0] = -1

    def _args(self, source: int, row: int) -> tuple[str, ...]:
        capture = self.sources[source].capture
        columns = ("dims_id", "types_id", "strides_id", "concrete_id")
        return tuple(capture.name(getattr(capture.ranges, name)[row]) for name in columns)

    def with_modules(self, rows: Rows, eager_rows: Rows) -> Rows:
        """Modules of an eager run for the rows that agree with it in their operator, where none is known."""
        take = (rows.module == 0) & (eager_rows.module > 0) & (rows.op_name == eager_rows.op_name)
        module = np.where(take, eager_rows.module, rows.module)
        layer = np.where(take & (rows.layer == 0), eager_rows.layer, rows.layer)
        layer_rule = np.where(take & (rows.layer == 0), eager_rows.layer_rule, rows.layer_rule)
        return replace(rows, module=module, layer=layer, layer_rule=layer_rule)

    def by_own_names(self, pattern: Pattern) -> Rows:
        """Without a capture: the operator that launches kernels of this name elsewhere in the same run."""
        rows = no_rows(len(pattern))
        rows.op_name[:] = [self._own_names.get(word, 0) for word in pattern.words.tolist()]
        rows.rule[rows.op_name > 0] = NAME
        rows.confidence[rows.op_name > 0] = CONFIDENCES.index("name")
        return rows

    @cached_property
    def _own_names(self) -> dict[int, int]:
        names_of_word: dict[int, set[int]] = defaultdict(set)
        for sequence in self.forwards:
            if sequence.source == 0:
                names = self._texts(self.op_names(sequence, sequence.op))
                for word, name in zip(sequence.words.tolist(), names.tolist(), strict=True):
                    names_of_word[word].add(name)
        # Copies and fills are one word each, so their name points to no single operator.
        return {
            word: next(iter(names))
            for word, names in names_of_word.items()
            if len(names) == 1 and word >= 0 and self.words.texts[word] not in (COPY, FILL)
        }

    def op_names(self, sequence: Sequence, rows: np.ndarray) -> list[str]:
        capture = self.sources[sequence.source].capture
        ids = np.append(capture.ranges.name_id, -1)[rows]
        return [capture.name(int(index)) for index in ids]

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def _texts(self, texts: Many[str]) -> np.ndarray:
        return np.array([self._text(text) for text in texts], dtype=np.int64)
