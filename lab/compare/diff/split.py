"""The change of summed kernel time, split so that every nanosecond is in one class.

For an op of equal shapes and the same kernel, n calls per unit of mean duration d:
`count` = (nB - nA) (dA + dB) / 2, `same_kernel_duration` = (dB - dA) (nA + nB) / 2, which leave nothing over.
A kernel on one side only under an op that both have is `other_kernel`; ops on one side only are `op_gone` or
`op_new`, of which those that took each other's place are one block, found by the order of launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache

import msgspec

from lab.compare.side import Key
from lab.compare.units import Sums
from lab.recordings.graphs.frames import class_of
from lab.recordings.names import short_name

MOST = 8_000  # operations of a unit that are aligned: seconds; the time grows with the square
Op = tuple[str, str]  # op, dims
Path = tuple[str, ...]  # a phase, then modules, outermost first
SHARED = "same_kernel_duration"  # the change of a kernel that both sides have
PARTS = ("count", "other_kernel", "op_gone", "op_new", SHARED)


class Row(msgspec.Struct, kw_only=True):
    """One part of the change, per unit: `ns` of it, and the calls on both sides.

    interval is that of `ns` over processes, None where each side is one process. block is the replaced block
    that it belongs to.
    """

    op: str
    dims: str
    types: str
    kernel_a: str | None
    kernel_b: str | None
    n_a: float
    n_b: float
    kind: str
    ns: float
    ns_a: float
    ns_b: float
    interval: tuple[float, float] | None = None
    confidence: str = ""
    block: int | None = None

    @property
    def keys(self) -> tuple[Key | None, Key | None]:
        """Of its operations on A and on B; None where it has none there."""
        of_a, of_b = (
            None if kernel is None else (self.op, self.dims, self.types, kernel)
            for kernel in (self.kernel_a, self.kernel_b)
        )
        return of_a, of_b

    @property
    def slower(self) -> float:
        """How much longer one call of a kernel takes that both sides have, as a share of A's."""
        return 2 * self.ns * self.n_a / (self.n_a + self.n_b) / max(self.ns_a, 1.0)


def split(a: Sums, b: Sums) -> list[Row]:
    """The rows of the change, largest first; their `ns` add up to the change of the sums."""
    rows: list[Row] = []
    lone: dict[tuple[str, ...], tuple[list[Key], list[Key]]] = {}
    for key in sorted(a.keys() | b.keys()):
        if key in a and key in b:
            (n_a, ns_a), (n_b, ns_b) = a[key], b[key]
            d_a, d_b = ns_a / n_a, ns_b / n_b
            rows.append(_row(SHARED, key, key, a, b, (d_b - d_a) * (n_a + n_b) / 2))
            if n_a != n_b:
                rows.append(_row("count", key, key, a, b, (n_b - n_a) * (d_a + d_b) / 2))
        else:
            lone.setdefault(key[:3], ([], []))[key in b].append(key)
    ops_a, ops_b = ({key[:3] for key in side} for side in (a, b))
    for op, (gone, new) in sorted(lone.items()):
        if op not in ops_a or op not in ops_b:
            kinds = ("op_gone", "op_new")
        elif len(gone) == len(new) == 1:  # one exchange
            rows.append(_row("other_kernel", gone[0], new[0], a, b))
            continue
        else:
            kinds = ("other_kernel", "other_kernel")
        rows += [_row(kinds[0], key, None, a, b) for key in gone]
        rows += [_row(kinds[1], None, key, a, b) for key in new]
    return sorted(rows, key=lambda row: (-abs(row.ns), row.op, row.dims, row.kernel_a or row.kernel_b or ""))


def parts_of(rows: list[Row]) -> dict[str, float]:
    return {part: float(sum(row.ns for row in rows if row.kind == part)) for part in PARTS}


def _row(kind: str, old: Key | None, new: Key | None, a: Sums, b: Sums, ns: float | None = None) -> Row:
    """ns: of the change that belongs to this row; None: all of it."""
    (n_a, ns_a), (n_b, ns_b) = a[old] if old else (0.0, 0.0), b[new] if new else (0.0, 0.0)
    op, dims, types, _ = old or new or ("", "", "", "")
    return Row(
        op=op,
        dims=dims,
        types=types,
        kernel_a=old[3] if old else None,
        kernel_b=new[3] if new else None,
        n_a=n_a,
        n_b=n_b,
        kind=kind,
        ns=ns_b - ns_a if ns is None else ns,
        ns_a=ns_a,
        ns_b=ns_b,
    )


class Block(msgspec.Struct, kw_only=True):
    """`ops_a` became `ops_b`, `times` in a unit. Empty on one side: ops that only went or came. A kernel's
    short name stands for its op where that is not known."""

    index: int
    ops_a: list[str]
    ops_b: list[str]
    times: int
    ns: float = 0.0
    # The innermost phase and module around all of them, layers as one.
    module_path: str = msgspec.field(name="where", default="")


def opcodes(a: Sequence[Key], b: Sequence[Key]) -> list[tuple[str, int, int, int, int]]:
    """What turns the order of A's ops and shapes into B's, as difflib says it; a kernel whose op is not known
    stands for itself."""
    return _opcodes(*(tuple(map(_op, side)) for side in (a, b)))


def _op(key: Key) -> Op:
    return key[:2] if key[0] else (key[3], "")


@lru_cache(maxsize=4)  # blocks, their places and the timelines ask for the same pair
def _opcodes(a: tuple[Op, ...], b: tuple[Op, ...]) -> list[tuple[str, int, int, int, int]]:
    # autojunk takes ops that occur often for noise: in a model of equal layers that is every op.
    return list(SequenceMatcher(None, a, b, autojunk=False).get_opcodes())


def replaced(
    a: Sequence[Key],
    b: Sequence[Key],
    rows: Sequence[Row],
    paths_a: Sequence[Path] = (),
    paths_b: Sequence[Path] = (),
) -> list[Block]:
    """The blocks that differ in order; marks the rows of ops that are in one of them alone.

    paths: the phase and modules around each of `a` and `b`, where they are known.
    """
    if not a or not b or max(len(a), len(b)) > MOST:
        return []
    places_of: dict[tuple[tuple[Op, ...], tuple[Op, ...]], list[Path]] = {}
    ops_a, ops_b = ([_op(key) for key in side] for side in (a, b))
    for tag, i1, i2, j1, j2 in opcodes(a, b):
        if tag != "equal":
            pair = (_folded(ops_a[i1:i2]), _folded(ops_b[j1:j2]))
            places_of.setdefault(pair, []).append(common([*paths_a[i1:i2], *paths_b[j1:j2]]))
    bare = {key[3] for key in (*a, *b) if not key[0]}
    blocks = []
    for index, ((old, new), places) in enumerate(places_of.items()):
        blocks.append(
            Block(
                index=index,
                ops_a=[short_name(op) if op in bare else op for op, _ in old],
                ops_b=[short_name(op) if op in bare else op for op, _ in new],
                times=len(places),
                module_path=" / ".join(common(places)),
            )
        )
        members = {"op_gone": set(old), "op_new": set(new)}
        for row in rows:
            kernel = row.kernel_a or row.kernel_b or ""
            if row.block is None and _op((row.op, row.dims, row.types, kernel)) in members.get(row.kind, ()):
                row.block = index
                blocks[-1].ns += row.ns
    return blocks


def common(paths: Sequence[Path]) -> Path:
    """The beginning that all paths share; instances of one class are one."""
    kinds = [tuple(map(class_of, path)) for path in paths]
    if not kinds:
        return ()
    low, high = min(kinds), max(kinds)
    same = next(
        (index for index, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), None
    )
    return low[: min(len(low), len(high)) if same is None else same]


def _folded(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Without repeats of one op in a row: several kernels of one launch."""
    return tuple(op for index, op in enumerate(ops) if index == 0 or ops[index - 1] != op)
