"""Which ops of a CPU recording stand in for launches."""

from __future__ import annotations

import re

from lab.rooms.kernels.replay.calls.recording import Op

# Leaf ops of a CPU recording that move no data.
NO_WORK = re.compile(
    r"aten::(_?(unsafe_)?view\w*|as_strided|_reshape_alias|empty\w*|detach\w*|alias|expand|permute|transpose|t"
    r"|select|slice|unsqueeze|squeeze|split\w*|chunk|unbind|narrow|unfold|resize_|set_|is_\w+|item|numpy_T"
    r"|lift_fresh|diagonal|result_type|can_cast|_has\w*|record_stream|size|stride|dim|to|_assert\w*|resolve_\w+)\Z"
)
# Copies and fills that other ops make for themselves.
HELPERS = re.compile(
    r"aten::(copy_|_to_copy|clone|contiguous|fill_|zero_|reshape|expand_as|resolve_conj|lift_fresh)\Z"
)


def working(ops: list[Op]) -> list[int]:
    """Indices of the ops that do the work: those without a worker inside, apart from their own helpers."""
    heavy = [_can_work(op) and not HELPERS.match(op.name) for op in ops]
    holds = [False] * len(ops)
    for index in range(len(ops) - 1, -1, -1):  # children come after their parents
        if ops[index].parent >= 0 and (heavy[index] or holds[index]):
            holds[ops[index].parent] = True
    inside, found = [False] * len(ops), []
    for index, op in enumerate(ops):
        inside[index] = op.parent >= 0 and inside[op.parent]
        if not inside[index] and _can_work(op) and not holds[index]:
            inside[index] = True
            found.append(index)
    return found


def _can_work(op: Op) -> bool:
    return "::" in op.name and not NO_WORK.match(op.name)
