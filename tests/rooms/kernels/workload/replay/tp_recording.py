"""Run by torchrun on two gloo ranks: a tensor-parallel network under torch's profiler, recorded on rank 0.

tp_recording.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function


class Net(torch.nn.Module):
    """Two sharded layers; between forwards an arange grows an empty tensor, as a causal mask's does."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(3, 9, 1)
        later = torch.arange(0, 7, 1)
        y = torch.nn.functional.dropout(self.down(self.up(x).relu()), 0.1, training=False)
        again = torch.arange(0, 7, 1)
        return y + x + places.sum() + later.sum() + again.sum()


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    net = parallelize_module(Net(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    x = torch.ones(7, 64)
    lead = dist.get_rank() == 0
    observer = ExecutionTraceObserver()
    if lead:
        observer.register_callback(str(folder / "et.json"))
    with torch.no_grad():
        net(x)
        with profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            execution_trace_observer=observer if lead else None,
        ) as session:
            for _ in range(2):
                with record_function("prefill"):
                    net(x)
    if lead:
        session.export_chrome_trace(str(folder / "trace.json"))
        observer.unregister_callback()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
