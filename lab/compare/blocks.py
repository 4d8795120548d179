"""Ops that took the place of other ops: found by the order of launches, equal blocks of all layers as one."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import msgspec

from lab.compare.side import Key
from lab.compare.split import Row

MOST = 20_000  # operations of a unit that are aligned; more take too long
Op = tuple[str, str]  # op, dims


class Block(msgspec.Struct, kw_only=True):
    """`ops_a` became `ops_b`, `times` in a unit. Empty on one side: ops that only went or came."""

    index: int
    ops_a: list[str]
    ops_b: list[str]
    times: int
    ns: float = 0.0


def replaced(a: Sequence[Key], b: Sequence[Key], rows: Sequence[Row]) -> list[Block]:
    """The blocks that differ in order; marks the rows of ops that are in one of them alone."""
    if not a or not b or max(len(a), len(b)) > MOST:
        return []
    found: dict[tuple[tuple[Op, ...], tuple[Op, ...]], int] = {}
    ops_a, ops_b = ([key[:2] for key in side] for side in (a, b))
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, ops_a, ops_b, autojunk=False).get_opcodes():
        if tag != "equal":
            one = (_folded(ops_a[i1:i2]), _folded(ops_b[j1:j2]))
            found[one] = found.get(one, 0) + 1
    blocks = []
    for index, ((old, new), times) in enumerate(found.items()):
        blocks.append(
            Block(index=index, ops_a=[op for op, _ in old], ops_b=[op for op, _ in new], times=times)
        )
        members = {"op_gone": set(old), "op_new": set(new)}
        for row in rows:
            if row.block is None and (row.op, row.dims) in members.get(row.kind, ()):
                row.block = index
                blocks[-1].ns += row.ns
    return blocks


def _folded(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Without repeats of one op in a row: several kernels of one launch."""
    return tuple(op for at, op in enumerate(ops) if at == 0 or ops[at - 1] != op)
