"""Ops that took the place of other ops: found by the order of launches, equal blocks of all layers as one."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache

import msgspec

from lab.compare.diff.split import Row
from lab.compare.side import Key
from lab.recordings.graphs.frames import class_of
from lab.recordings.names import short_name

MOST = 8_000  # operations of a unit that are aligned: seconds; the time grows with the square
Op = tuple[str, str]  # op, dims
Path = tuple[str, ...]  # a phase, then modules, outermost first


class Block(msgspec.Struct, kw_only=True):
    """`ops_a` became `ops_b`, `times` in a unit. Empty on one side: ops that only went or came. A kernel's
    short name stands for its op where that is not known."""

    index: int
    ops_a: list[str]
    ops_b: list[str]
    times: int
    ns: float = 0.0
    module_path: str = msgspec.field(
        name="where", default=""
    )  # the innermost phase and module around all of them, layers as one


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
