"""cpu ops"""

from __future__ import annotations

import re

from lab.rooms.kernels.replay.trace import Op

# Leaf ops of a CPU recording that move no data.
NO_WORK = re.compile(
    r"aten::(_?(unsafe_)?view\w*|as_strided|_reshape_alias|empty\w*|detach\w*|alias|expand|permute|transpose|t|select"
    r"|slice|unsqueeze|squeeze|split\w*|chunk|unbind|narrow|unfold|resize_|set_|is_\w+|item|numpy_T|lift_fresh|diagonal"
    r"|result_type|can_cast|_has\w*|record_stream|size|stride|dim|to|_assert\w*|resolve_\w+)\Z"
)


# What other ops call for themselves: no work of its own beside them.
HELPERS = re.compile(
    r"aten::(copy_|_to_copy|clone|contiguous|fill_|zero_|reshape|expand_as|resolve_conj|lift_fresh)\Z"
)


def working(ops: list[Op]) -> list[int]:
    """Ops that do the work: outermost ones without another inside, but for copies and fills they make for themselves."""
    heavy = [_can_work(op) and not HELPERS.match(op.event.name) for op in ops]
    holds = [False] * len(ops)
    for place in range(len(ops) - 1, -1, -1):  # children come after their parents
        if ops[place].parent >= 0 and (heavy[place] or holds[place]):
            holds[ops[place].parent] = True
    inside, found = [False] * len(ops), []
    for place, op in enumerate(ops):
        inside[place] = op.parent >= 0 and inside[op.parent]
        if not inside[place] and _can_work(op) and not holds[place]:
            inside[place] = True
            found.append(place)
    return found


def _can_work(op: Op) -> bool:
    return "::" in op.event.name and not NO_WORK.match(op.event.name)
