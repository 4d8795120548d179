"""load"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lab.rooms.kernels.workload.replay.build import Bound, bind, first_call, footprint_bytes
from lab.rooms.kernels.workload.replay.machine import progress as say
from lab.rooms.kernels.workload.replay.order import ROTATED_BYTES, Ready, l2_bytes

GRAPH_CALLS = 200


MOST_BYTES = 8 << 30


class Load:
    """A call made ready to keep the GPU busy: `launch()` queues `calls` of it.

    Buffers rotate when a call touches more than ROTATED_BYTES, so that weights come from memory as in a model.
    """

    def __init__(self, launch: Callable[[], Any], calls: int, buffers: int, captured: bool) -> None:
        self.launch, self.calls, self.buffers, self.captured = launch, calls, buffers, captured

    @classmethod
    def of(cls, ready: Ready, device: torch.device) -> Load:
        op, overload, args, _ = ready
        first, _ = first_call(bind(op, overload, args, device))
        size = max(1, footprint_bytes(first))
        count = (
            1
            if size < ROTATED_BYTES
            else max(1, min(64, 1 + 2 * l2_bytes(device) // size, MOST_BYTES // size))
        )
        sets = [first, *(first_call(bind(op, overload, args, device))[0] for _ in range(count - 1))]
        calls = max(count, GRAPH_CALLS // count * count)
        graph = captured(sets, calls)
        if graph is not None:
            return cls(graph.replay, calls, count, True)
        return cls(lambda: [sets[place % count]() for place in range(calls)], calls, count, False)


def captured(sets: list[Bound], calls: int) -> Any:
    """A CUDA graph of `calls` calls over the sets in turn; None where the op cannot be captured."""
    if not hasattr(torch.cuda, "CUDAGraph") or any(
        t.device.type == "cpu" for one in sets for t in one.tensors()
    ):
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for place in range(calls):
                sets[place % len(sets)]()
    except RuntimeError as error:
        torch.cuda.synchronize()
        say(f"not captured, queued instead: {str(error).splitlines()[0][:120]}")
        return None
    return graph
