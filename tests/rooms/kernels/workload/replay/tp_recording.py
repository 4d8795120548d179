"""Run by torchrun on two gloo ranks: a tensor-parallel network, recorded and ended as a profile of lab is.

tp_recording.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.profiler import record_function

from lab.rooms.kernels.workload.profile.passes import tracing
from lab.workload.rank import RankContext, process_group
from lab.workload.start import leave_group


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
    context = RankContext.from_env()
    device = torch.device("cpu")
    with process_group(context, device):
        mesh = init_device_mesh("cpu", (context.world_size,))
        net = parallelize_module(Net(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        x = torch.ones(7, 64)
        with torch.no_grad():
            net(x)
            with tracing(folder, context.rank, device, record_shapes=True) as keep:
                for _ in range(2):
                    with record_function("prefill"):
                        net(x)
        keep()
    leave_group(context)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
