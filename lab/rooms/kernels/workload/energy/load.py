"""One call, repeated to keep the GPU busy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from lab.rooms.kernels.config import KernelsConfig
from lab.rooms.kernels.cures import first_line
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.workload.model import load
from lab.rooms.kernels.workload.profile.passes import Run
from lab.rooms.kernels.workload.replay.build import Bound, bind, first_call, footprint_bytes
from lab.rooms.kernels.workload.replay.machine import l2_bytes, progress
from lab.rooms.kernels.workload.replay.order import MOST_SETS, ROTATED_BYTES, Ready

GRAPH_CALLS = 200
MOST_BYTES = 8 << 30  # of all buffers of one call


class Load:
    """A call made ready to keep the GPU busy: `launch()` queues `calls` of it.

    Buffers rotate when a call touches more than ROTATED_BYTES, so that weights come from memory as in a
    model.
    """

    def __init__(self, launch: Callable[[], Any], calls: int, buffers: int, captured: bool) -> None:
        self.launch, self.calls, self.buffers, self.captured = launch, calls, buffers, captured

    @classmethod
    def of(cls, ready: Ready, device: torch.device) -> Load:
        op, overload, args, _ = ready
        bound, _ = first_call(bind(op, overload, args, device))
        count = _num_buffers(max(1, footprint_bytes(bound)), device)
        sets = [bound, *(first_call(bind(op, overload, args, device))[0] for _ in range(count - 1))]
        calls = max(count, GRAPH_CALLS // count * count)
        graph = captured(sets, calls)
        if graph is not None:
            return cls(graph.replay, calls, count, True)
        return cls(lambda: [sets[index % count]() for index in range(calls)], calls, count, False)


def _num_buffers(size_bytes: int, device: torch.device) -> int:
    """Enough buffers to overflow the L2 cache twice; small calls keep a single one."""
    if size_bytes < ROTATED_BYTES:
        return 1
    return max(1, min(MOST_SETS, 1 + 2 * l2_bytes(device) // size_bytes, MOST_BYTES // size_bytes))


def captured(sets: list[Bound], calls: int) -> Any:
    """A CUDA graph of `calls` calls over the sets in turn; None if the op cannot be captured."""
    on_cpu = any(tensor.device.type == "cpu" for one in sets for tensor in one.tensors())
    if on_cpu or not hasattr(torch.cuda, "CUDAGraph"):
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for index in range(calls):
                sets[index % len(sets)]()
    except RuntimeError as error:
        torch.cuda.synchronize()
        progress(f"not captured, queued instead: {first_line(error)[:120]}")
        return None
    return graph


def generation(plan: ReplayPlan, device: torch.device, out: Path) -> Callable[[], Any]:
    """A function that runs one whole generation, with as many new tokens as were recorded."""
    fields = set(KernelsConfig.__struct_fields__)
    wanted = {name: value for name, value in plan.config.items() if name in fields}
    tokens = int(plan.config.get("new_tokens", plan.config.get("max_new_tokens", 16)))
    config = msgspec.convert({**wanted, "max_new_tokens": tokens, "fixed_tokens": True}, KernelsConfig)
    run = Run(config, load(config, device, on_cpu=False), out, 0, device)
    run.generate()
    return run.generate
