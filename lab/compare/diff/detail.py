"""How much of an operation both sides know: what only one side recorded cannot be compared by.

Without ops, or without shapes, on one side every operation would be gone there and new here. And nsys writes
the names of kernels in another way than torch.profiler, and every tool those of copies.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from lab.compare.side import Work, memory_name

LEAST = 0.05  # share of GPU operations with an op (of these, with shapes), above which a side has them
_OF_NSYS = re.compile(r"<unnamed>|\((?:bool|int|unsigned long|long)\)-?\d|\[lambda\(")


def at_common_detail(a: Work, b: Work) -> tuple[Work, Work, list[str]]:
    """Both sides as far as both go, and what was left out of the comparison."""
    notes = []
    ops = [_share_with_ops(work) for work in (a, b)]
    shapes = [_share_with_shapes(work) for work in (a, b)]
    drop: tuple[str, ...] = ()
    if max(ops) > LEAST >= min(ops):
        lacking = "A" if ops[0] < ops[1] else "B"
        notes.append(f"{lacking} records no ops: kernels are compared without their ops and shapes")
        drop = ("op", "dims", "types")
    elif min(ops) > LEAST and max(shapes) > LEAST >= min(shapes):
        lacking = "A" if shapes[0] < shapes[1] else "B"
        notes.append(f"{lacking} records no shapes: ops are compared without them")
        drop = ("dims", "types")
    tools = [_tools_of_copies(work) for work in (a, b)]
    plain = _is_nsys_style(a) != _is_nsys_style(b) or (all(tools) and tools[0] != tools[1])
    if plain:
        notes.append("kernels' names are written in two ways: compared without arguments and casts")
    if not drop and not plain:
        return a, b, notes
    return replace(a, drop=drop, plain=plain), replace(b, drop=drop, plain=plain), notes


def _share_with_ops(work: Work) -> float:
    return 1 - work.unlinked / max(len(work.dur_ns), 1)


def _share_with_shapes(work: Work) -> float:
    keys, which = work.keys
    with_op = np.array([bool(key[0]) for key in keys], dtype=bool)[which]
    with_shapes = np.array([bool(key[0] and key[1]) for key in keys], dtype=bool)[which]
    return float(with_shapes.sum()) / max(int(with_op.sum()), 1)


def _tools_of_copies(work: Work) -> set[str]:
    """The tools that write the names of its copies and fills so."""
    return {memory[0] for key in work.keys[0] if (memory := memory_name(key[3]))}


def _is_nsys_style(work: Work) -> bool:
    return any(_OF_NSYS.search(key[3]) for key in work.keys[0])
