"""nodes"""

from __future__ import annotations

from typing import Any

from lab.rooms.kernels.replay.from_node import HOLE


def tensor_slots(side: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """[storage id, offset] of each tensor among a node's inputs or outputs, lists flattened."""
    found: list[tuple[int, int]] = []
    for value, kind in zip(side.get("values", []), side.get("types", []), strict=False):
        if str(kind).startswith("Tensor(") and HOLE not in str(kind):
            found.append((int(value[1]), int(value[2])))
        elif "List[" in str(kind) and "Tensor(" in str(kind):
            there = [one for one in value if isinstance(one, list) and len(one) == 6 and one[5]]
            found += [(int(one[1]), int(one[2])) for one in there]
    return tuple(found)


def out_shapes(side: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """The shape of each tensor among a node's outputs, lists flattened."""
    found: list[tuple[int, ...]] = []
    for shape, kind in zip(side.get("shapes", []), side.get("types", []), strict=False):
        if str(kind).startswith("Tensor("):
            found.append(tuple(shape))
        elif "Tensor(" in str(kind):
            found += [tuple(one) for one in shape]
    return tuple(found)
