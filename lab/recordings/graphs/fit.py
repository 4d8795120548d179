"""Whether a replay is a run of a captured graph or an eager forward, and where each of its rows stands."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from lab.perfmodel.products import is_product
from lab.recordings.capture import KERNEL, MEMCPY, MEMSET
from lab.recordings.graphs.sequences import CAPTURED, COPY, EAGER, FILL, Sequence, Words
from lab.recordings.names import is_matmul


@dataclass(frozen=True)
class Places:
    """For each row (k,): earliest and latest possible position, -1 for none."""

    earliest: np.ndarray
    latest: np.ndarray

    @property
    def sure(self) -> np.ndarray:
        """Mask (k,): the row can be nowhere else."""
        sure: np.ndarray = (self.earliest >= 0) & (self.earliest == self.latest)
        return sure


def places(part: np.ndarray, captured: np.ndarray, lane: np.ndarray) -> Places | None:
    """Places of the words `part` (k,) in `captured` (m,); None where they stand in another order.

    lane (k,): the stream of each row; rows keep their order within a lane only. A word that was not captured
    has no place. A word that is complete and runs in one lane only stands at its own places, in their order.
    """
    positions: dict[int, list[int]] = defaultdict(list)
    for index, word in enumerate(captured.tolist()):
        positions[word].append(index)
    allowed = [positions[word] for word in part.tolist()]
    for word in np.unique(part).tolist():
        rows = np.flatnonzero(part == word)
        if len(rows) == len(positions[word]) and len(np.unique(lane[rows])) == 1:
            for row, position in zip(rows.tolist(), positions[word], strict=True):
                allowed[row] = [position]
    earliest, latest = np.full(len(part), -1), np.full(len(part), -1)
    is_captured = np.isin(part, captured)
    for number in np.unique(lane).tolist():
        rows = np.flatnonzero((lane == number) & is_captured)
        embedding = _embedded([allowed[row] for row in rows.tolist()])
        if embedding is None:
            return None
        earliest[rows], latest[rows] = embedding
    result = Places(earliest, latest)
    certain = earliest[result.sure]  # where two lanes claim one launch, it is not this capture
    return result if len(np.unique(certain)) == len(certain) else None


def _embedded(allowed: list[list[int]]) -> tuple[list[int], list[int]] | None:
    """The earliest and the latest strictly increasing choice, one of each row's `allowed`; None for none."""
    # From both ends, for a single greedy pass puts only 38 to 55 % of the kernels right after a lost run of
    # rows, and cannot tell which.
    earliest, latest = [0] * len(allowed), [0] * len(allowed)
    position = -1
    for row, choices in enumerate(allowed):
        index = bisect_right(choices, position)
        if index == len(choices):
            return None
        position = earliest[row] = choices[index]
    position = 1 << 62
    for row in range(len(allowed) - 1, -1, -1):
        position = latest[row] = allowed[row][bisect_left(allowed[row], position) - 1]
    return earliest, latest


# With fewer rows of captured names than this, the replay is of another graph.
MIN_KNOWN = 0.9
# ROCm was seen to lose 74 % of a replay's rows (ROCm/rocm-systems#4361);
# a tiny graph must not pass for the rest of a large one.
MIN_COVERED = 0.2
# Kernels of another shape run with other grids: then the eager run is of another batch.
MIN_SAME_GRID = 0.5
_MAY_MULTIPLY = re.compile(
    r"mm|mv|dot|conv|attention|linear|matmul|einsum|rnn|lstm|gru|bilinear|inverse|solve"
)


@dataclass(frozen=True)
class Pattern:
    """The rows of one replay, columns (k,): words, stream (`lane`), node's index or -1, geometry (k, 6)."""

    words: np.ndarray
    lane: np.ndarray
    node: np.ndarray
    geometry: np.ndarray

    def __len__(self) -> int:
        return len(self.words)

    @property
    def key(self) -> tuple[bytes, ...]:
        lanes = np.unique(self.lane, return_inverse=True)[1].astype(np.int32)
        return tuple(one.tobytes() for one in (self.words, lanes, self.node, self.geometry))


@dataclass(frozen=True)
class Fit:
    """A sequence that the replay is a run of; places of its rows in it. by: `node`, `order` or `count`."""

    sequence: Sequence
    places: Places
    by: str

    @property
    def num_placed(self) -> int:
        return int((self.places.earliest >= 0).sum())

    @property
    def num_missing(self) -> int:
        """Captured launches without a row."""
        return len(self.sequence) - self.num_placed

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Best first; equal ranks cannot be told apart."""
        return self.by == "count", self.num_missing, len(self.places.earliest) - self.num_placed

    def same_grids(self, pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
        """Rows (m,) with a certain place and grids on both sides, and whether these are equal (m,)."""
        sure = np.flatnonzero(self.places.sure)
        replayed, captured = pattern.geometry[sure], self.sequence.geometry[self.places.earliest[sure]]
        recorded = (replayed[:, 0] > 0) & (captured[:, 0] > 0)
        return sure[recorded], (replayed == captured).all(axis=1)[recorded]


def fit(pattern: Pattern, sequence: Sequence, words: Words) -> Fit | str:
    """How the replay fits, or a sentence why it does not."""
    # The cheapest question first: a server has hundreds of captures for thousands of replays.
    num_rows, size = len(pattern), len(sequence)
    if num_rows < MIN_COVERED * size:
        return f"{num_rows} rows are too few for its {size} launches"
    if (sequence.words < 0).any():
        return _by_count(pattern, sequence, words)
    if (num_known := int(np.isin(pattern.words, sequence.words).sum())) < MIN_KNOWN * num_rows:
        return f"only {num_known} of {num_rows} kernels occur in it"
    result = _by_node(pattern, sequence) or _by_order(pattern, sequence)
    if result is None:
        return f"the {num_known} kernels that occur in it do not stand in it in this order"
    _, is_same = result.same_grids(pattern)
    if sequence.origin == EAGER and len(is_same) and is_same.mean() < MIN_SAME_GRID:
        return f"only {is_same.mean():.0%} of the kernels have the same grid: another batch or length"
    return result


def _by_node(pattern: Pattern, sequence: Sequence) -> Fit | None:
    """Nodes are numbered in the order of capture: the number is the place, if the names agree."""
    node = pattern.node
    if (node < 0).any() or node.max(initial=0) >= len(sequence) or len(np.unique(node)) < len(node):
        return None
    if sequence.origin != CAPTURED or (sequence.words[node] != pattern.words).any():
        return None
    return Fit(sequence, Places(node, node), "node")


def _by_order(pattern: Pattern, sequence: Sequence) -> Fit | None:
    """Fit rows by the order of their nodes if each row has its own node, else by the order of each stream."""
    node, words, lane = pattern.node, pattern.words, pattern.lane
    order = np.arange(len(pattern))
    if (node >= 0).all() and len(np.unique(node)) == len(node):
        order, lane = np.argsort(node, kind="stable"), np.zeros_like(lane)
    embedding = places(words[order], sequence.words, lane[order])
    if embedding is None:
        return None
    index = np.argsort(order)
    return Fit(sequence, Places(embedding.earliest[index], embedding.latest[index]), "order")


def _by_count(pattern: Pattern, sequence: Sequence, words: Words) -> Fit | str:
    """Without names at capture: number and kind of the launches, and no pair against another."""
    if len(pattern) != len(sequence):
        return f"{len(pattern)} rows for {len(sequence)} launches that the capture has no names of"
    if len(np.unique(pattern.lane)) > 1:
        return "the capture has no names, and the replay ran in several streams: their order is not known"
    kinds = np.select([pattern.words == words[COPY], pattern.words == words[FILL]], [MEMCPY, MEMSET], KERNEL)
    named = sequence.words >= 0
    if (kinds != sequence.kinds).any() or (pattern.words[named] != sequence.words[named]).any():
        return "the number of launches agrees, but not the order of kernels, copies and fills"
    # One kernel under two different calls shows that the counts agree by chance.
    apis: dict[int, set[int]] = defaultdict(set)
    for word, api in zip(pattern.words.tolist(), sequence.api.tolist(), strict=True):
        apis[word].add(api)
    if any(len(ways) > 1 for ways in apis.values()):
        return "the number of launches agrees, but one kernel would be launched by different API calls"
    positions = np.arange(len(pattern))
    return Fit(sequence, Places(positions, positions), "count")


def products_agree(pattern: Pattern, match: Fit, op_names: list[str], words: Words) -> bool:
    """Whether each matrix product of the framework owns a kernel that multiplies, and no other op does."""
    multiplies: dict[int, bool] = {}
    for word, row, name in zip(pattern.words.tolist(), match.sequence.op.tolist(), op_names, strict=True):
        product = is_matmul(words.texts[word])
        if row >= 0 and is_product(name):
            multiplies[row] = multiplies.get(row, False) or product
        elif row >= 0 and product and name.startswith("aten::") and not _MAY_MULTIPLY.search(name):
            return False
    return all(multiplies.values())
