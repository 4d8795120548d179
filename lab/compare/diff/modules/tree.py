"""Two trees of modules matched in order: what was inserted, deleted or renamed, with equal layers as one.

Children of matched nodes are matched in their order of launch: of one class, or of another class with the
same operations below (renamed). A node that one side lacks may be a wrapper, whose children then match on.
Everything else stays unmatched below the nearest ancestor that both sides have; nothing is forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.recordings.graphs.frames import class_of

BOTH, RENAMED, ONLY_A, ONLY_B = "both", "renamed", "only in A", "only in B"
MOST_PAIRS = 1_000_000  # pairs of children that are compared; of more only equal beginnings and ends match
FEW = 4  # equal modules without parts are listed one by one up to here
_SAME, _SAME_CLASS, _SAME_WORK = 4, 2, 3


@dataclass
class Node:
    """A module's instance in a unit: its own operations (not those of its parts), calls and ns per unit."""

    name: str
    n: float = 0.0
    ns: float = 0.0
    ops: dict[str, float] = field(default_factory=dict)
    parts: dict[str, Node] = field(default_factory=dict)
    _work: int | None = None
    _size: float | None = None

    @property
    def kind(self) -> str:
        return class_of(self.name)

    @property
    def work(self) -> int:
        """A number that equal work has: the same operations here and in parts of the same work."""
        if self._work is None:
            below = tuple((part.kind, part.work) for part in self.parts.values())
            self._work = hash((tuple(sorted(self.ops.items())), below))
        return self._work

    @property
    def size(self) -> float:
        """Operations here and below."""
        if self._size is None:
            self._size = self.n + sum(part.size for part in self.parts.values())
        return self._size

    def at(self, path: Sequence[str]) -> Node:
        """The node at this path, made where it is not there yet."""
        node = self
        for name in path:
            node = node.parts.setdefault(name, Node(name))
        return node


@dataclass
class Match:
    """A node of A and one of B, or of one side alone; `parts` are the matches below."""

    a: Node | None
    b: Node | None
    parts: list[Match] = field(default_factory=list)

    @property
    def state(self) -> str:
        if self.a is None or self.b is None:
            return ONLY_B if self.a is None else ONLY_A
        return BOTH if self.a.kind == self.b.kind else RENAMED

    @property
    def label(self) -> str:
        """`Block`, or `Old -> New`."""
        kinds = [node.kind for node in (self.a, self.b) if node]
        return " -> ".join(dict.fromkeys(kinds))

    @property
    def matched(self) -> float:
        """Operations of A here and below that have a partner."""
        mine = self.a.n if self.a and self.b else 0.0
        return mine + sum(part.matched for part in self.parts)


def match(a: Node, b: Node) -> Match:
    """The two roots and all below them."""
    return Match(a, b, match_parts(list(a.parts.values()), list(b.parts.values())))


def match_parts(a: Sequence[Node], b: Sequence[Node]) -> list[Match]:
    """Matches of two lists of siblings, in order; every node is in one of them."""
    found: list[Match] = []
    at_a = at_b = 0
    for i, j in [*_pairs(a, b), (len(a), len(b))]:
        found += _unmatched(a[at_a:i], b[at_b:j])
        if i < len(a):
            found.append(match(a[i], b[j]))
        at_a, at_b = i + 1, j + 1
    return found


def alone(node: Node, *, of_a: bool) -> Match:
    parts = [alone(part, of_a=of_a) for part in node.parts.values()]
    return Match(node, None, parts) if of_a else Match(None, node, parts)


def _unmatched(a: Sequence[Node], b: Sequence[Node]) -> list[Match]:
    """Siblings without a partner: perhaps those of one side wrap the others."""
    if a and b:
        for of_a in (True, False):
            if found := _through(a, b, of_a=of_a):
                return found
    return [alone(node, of_a=True) for node in a] + [alone(node, of_a=False) for node in b]


def _through(a: Sequence[Node], b: Sequence[Node], *, of_a: bool) -> list[Match]:
    """The matches if one side's nodes (A's: of_a) are wrappers; none if less than half of the work fits."""
    wrappers = a if of_a else b
    owner = {id(part): index for index, node in enumerate(wrappers) for part in node.parts.values()}
    parts = [part for node in wrappers for part in node.parts.values()]
    if not parts:
        return []
    below = match_parts(parts, b) if of_a else match_parts(a, parts)
    if sum(one.matched for one in below) * 2 <= sum(node.size for node in a):
        return []
    found = [Match(node, None) if of_a else Match(None, node) for node in wrappers]
    beside: list[Match] = []
    for one in below:
        index = owner.get(id(one.a if of_a else one.b))
        (beside if index is None else found[index].parts).append(one)
    return found + beside


def _pairs(a: Sequence[Node], b: Sequence[Node]) -> list[tuple[int, int]]:
    """Indices of partners, rising on both sides, with the largest sum of likeness."""
    begin = 0
    while begin < min(len(a), len(b)) and _likeness(a[begin], b[begin]) == _SAME:
        begin += 1
    end = 0
    while end < min(len(a), len(b)) - begin and _likeness(a[-1 - end], b[-1 - end]) == _SAME:
        end += 1
    inner_a, inner_b = a[begin : len(a) - end], b[begin : len(b) - end]
    found = [(at, at) for at in range(begin)]
    if len(inner_a) * len(inner_b) <= MOST_PAIRS:
        found += [(begin + i, begin + j) for i, j in _best(inner_a, inner_b)]
    return found + [(len(a) - end + at, len(b) - end + at) for at in range(end)]


def _best(a: Sequence[Node], b: Sequence[Node]) -> list[tuple[int, int]]:
    score = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    like = [[_likeness(one, other) for other in b] for one in a]
    for i in range(len(a) - 1, -1, -1):
        row, below = score[i], score[i + 1]
        for j in range(len(b) - 1, -1, -1):
            pair = like[i][j] + below[j + 1] if like[i][j] else 0
            row[j] = max(pair, below[j], row[j + 1])
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        if like[i][j] and score[i][j] == like[i][j] + score[i + 1][j + 1]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif score[i][j] == score[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


def _likeness(a: Node, b: Node) -> int:
    same_work = a.work == b.work and a.size > 0
    if a.kind == b.kind:
        return _SAME if a.work == b.work else _SAME_CLASS
    return _SAME_WORK if same_work else 0


@dataclass
class Line:
    """One row of the folded trees: `times` matches with one path. n and ns are own, per unit; `whole_*` with
    all below."""

    path: tuple[str, ...]
    state: str
    times: int
    n_a: float
    n_b: float
    ns_a: float
    ns_b: float
    whole_ns_a: float
    whole_ns_b: float


def lines(root: Match) -> list[Line]:
    """The tree from its root down; layers that match alike are one line. Own ns add up to the whole."""
    return _lines([root], ())


def _lines(group: list[Match], above: tuple[str, ...]) -> list[Line]:
    """The lines of matches that are folded into one, and of all their parts."""
    first = group[0]
    own = Line(
        path=above,
        state=first.state,
        times=len(group),
        n_a=sum(one.a.n for one in group if one.a),
        n_b=sum(one.b.n for one in group if one.b),
        ns_a=sum(one.a.ns for one in group if one.a),
        ns_b=sum(one.b.ns for one in group if one.b),
        whole_ns_a=0.0,
        whole_ns_b=0.0,
    )
    own.whole_ns_a, own.whole_ns_b = own.ns_a, own.ns_b
    found = [own]
    # All of the group have parts of equal forms, so the folds of the first are those of the others.
    for label, columns in _folds(first.parts):
        members = [one.parts[column] for one in group for column in columns]
        below = _lines(members, (*above, label))
        own.whole_ns_a += below[0].whole_ns_a
        own.whole_ns_b += below[0].whole_ns_b
        found += below
    return found


def _folds(parts: Sequence[Match]) -> list[tuple[str, list[int]]]:
    """Runs of parts that are alike: a label and their indices."""
    runs: list[list[int]] = []
    forms = [_form(part) for part in parts]
    for index in range(len(parts)):
        if runs and forms[runs[-1][-1]] == forms[index]:
            runs[-1].append(index)
        else:
            runs.append([index])
    flat = [run for run in runs for run in ([run] if _folded(parts, run) else [[one] for one in run])]
    count: dict[str, int] = {}
    for run in flat:
        label = parts[run[0]].label
        count[label] = count.get(label, 0) + 1
    seen: dict[str, int] = {}
    found = []
    for run in flat:
        label = parts[run[0]].label
        seen[label] = seen.get(label, 0) + 1
        number = f" [{seen[label]}]" if count[label] > 1 else ""
        found.append((f"{label}{number}" + (f" x{len(run)}" if len(run) > 1 else ""), run))
    return found


def _folded(parts: Sequence[Match], run: list[int]) -> bool:
    return len(run) > FEW or bool(parts[run[0]].parts)


def _form(one: Match) -> tuple[object, ...]:
    """What two matches share that can be one line, with all their parts."""
    own = tuple((node.kind, node.work) if node else None for node in (one.a, one.b))
    return own, tuple(_form(part) for part in one.parts)
