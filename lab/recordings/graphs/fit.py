"""Whether a replay is a run of a captured graph or an eager forward, and where each of its rows stands."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from lab.perfmodel.products import is_product
from lab.recordings.capture import KERNEL, MEMCPY, MEMSET
from lab.recordings.graphs.align import Places, num_possible, places
from lab.recordings.graphs.replays import COPY, FILL, Words
from lab.recordings.graphs.sequences import CAPTURED, EAGER, Sequence
from lab.recordings.names import is_matmul

# Fewer rows in order than this, and the replay is of another graph.
MIN_IN_ORDER = 0.9
# ROCm was seen to lose 74 % of a replay's rows; a tiny graph must not pass for the rest of a large one.
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
    def num_missing(self) -> int:
        """Captured launches without a row."""
        return len(self.sequence) - self.places.num_matched

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Best first; equal ranks cannot be told apart."""
        return self.by == "count", self.num_missing, len(self.places.first) - self.places.num_matched


def fit(pattern: Pattern, sequence: Sequence, words: Words) -> Fit | str:
    """How the replay fits, or in words why it does not."""
    num_rows, size = len(pattern), len(sequence)
    if num_rows < MIN_COVERED * size:
        return f"{num_rows} rows are too few for its {size} launches"
    if (sequence.words < 0).any():
        return _by_count(pattern, sequence, words)
    if (possible := num_possible(pattern.words, sequence.words)) < MIN_IN_ORDER * num_rows:
        return f"only {possible} of {num_rows} kernels occur in it"
    found = _by_node(pattern, sequence) or _by_order(pattern, sequence)
    if found.places.num_matched < MIN_IN_ORDER * num_rows:
        return f"only {found.places.num_matched} of {num_rows} kernels stand in it in this order"
    if sequence.origin == EAGER and (share := _same_grid(pattern, found)) < MIN_SAME_GRID:
        return f"only {share:.0%} of the kernels have the same grid: another batch or length"
    return found


def _by_node(pattern: Pattern, sequence: Sequence) -> Fit | None:
    """Nodes are numbered in the order of capture: the number is the place, if the names agree."""
    node = pattern.node
    if (node < 0).any() or node.max(initial=0) >= len(sequence) or len(np.unique(node)) < len(node):
        return None
    if sequence.origin != CAPTURED or (sequence.words[node] != pattern.words).any():
        return None
    return Fit(sequence, Places(node, node, len(node)), "node")


def _by_order(pattern: Pattern, sequence: Sequence) -> Fit:
    if (pattern.node >= 0).all() and len(np.unique(pattern.node)) == len(pattern):
        order = np.argsort(pattern.node, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        found = places(pattern.words[order], sequence.words)
        return Fit(sequence, Places(found.first[back], found.last[back], found.num_matched), "order")
    one_lane = len(np.unique(pattern.lane)) < 2
    if one_lane and np.array_equal(pattern.words, sequence.words):
        at = np.arange(len(pattern))
        return Fit(sequence, Places(at, at, len(at)), "order")
    return Fit(sequence, places(pattern.words, sequence.words, pattern.lane), "order")


def _by_count(pattern: Pattern, sequence: Sequence, words: Words) -> Fit | str:
    """Without names at capture: number and kind of the launches, and no pair against another."""
    if len(pattern) != len(sequence):
        return f"{len(pattern)} rows for {len(sequence)} launches that the capture has no names of"
    if len(np.unique(pattern.lane)) > 1:
        return "the capture has no names, and the replay ran in several streams: their order is not known"
    kinds = np.select([pattern.words == words[COPY], pattern.words == words[FILL]], [MEMCPY, MEMSET], KERNEL)
    known = sequence.words >= 0
    if (kinds != sequence.kinds).any() or (pattern.words[known] != sequence.words[known]).any():
        return "the number of launches agrees, but not the order of kernels, copies and fills"
    apis: dict[int, set[int]] = defaultdict(set)
    for word, api in zip(pattern.words.tolist(), sequence.api.tolist(), strict=True):
        apis[word].add(api)
    if any(len(ways) > 1 for ways in apis.values()):
        return "the number of launches agrees, but one kernel would be launched by different API calls"
    at = np.arange(len(pattern))
    return Fit(sequence, Places(at, at, len(at)), "count")


def products_agree(pattern: Pattern, found: Fit, op_names: list[str], words: Words) -> bool:
    """Whether each matrix product of the framework owns a kernel that multiplies, and no other op does."""
    multiplies: dict[int, bool] = {}
    for word, row, name in zip(pattern.words.tolist(), found.sequence.op.tolist(), op_names, strict=True):
        product = is_matmul(words.list[word])
        if row >= 0 and is_product(name):
            multiplies[row] = multiplies.get(row, False) or product
        elif row >= 0 and product and name.startswith("aten::") and not _MAY_MULTIPLY.search(name):
            return False
    return all(multiplies.values())


def _same_grid(pattern: Pattern, found: Fit) -> float:
    sure = np.flatnonzero(found.places.sure)
    mine, theirs = pattern.geometry[sure], found.sequence.geometry[found.places.first[sure]]
    known = (mine[:, 0] > 0) & (theirs[:, 0] > 0)
    return float((mine[known] == theirs[known]).all(axis=1).mean()) if known.any() else 1.0
