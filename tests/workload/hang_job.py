"""Two ranks that hang in a chosen way: `torchrun --nproc_per_node 2 hang_job.py CASE OUT [LIMIT_S]`.

Runs on the GPUs where there are two (NCCL), on the CPU otherwise (gloo).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from lab.workload import stall
from lab.workload.rank import RankContext
from lab.workload.stall import watch_for_stall


def main(case: str, out: Path, limit_s: float) -> None:
    context = RankContext.from_env()
    stall.LEAST_WAIT_S = 20.0
    on_gpu = torch.cuda.device_count() >= context.world_size
    device = torch.device("cuda", context.local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    with watch_for_stall(out, context, 300.0):  # a rank may take long to begin on a loaded machine
        dist.init_process_group("nccl" if on_gpu else "gloo")
        other = dist.new_group([0, 1])
        data = torch.ones(1024, device=device)
        if on_gpu:  # NCCL builds a communicator in a group's first call, and records that call afterwards
            dist.all_reduce(data, group=other)
        for _ in range(3):
            dist.all_reduce(data)
        settle(device)
    with watch_for_stall(out, context, limit_s) as progressed:
        CASES[case](context.rank, data, other)
        settle(device)
        progressed()
        dist.barrier()
        dist.destroy_process_group()
    print(f"rank {context.rank} is through", flush=True)


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def healthy(rank: int, data: torch.Tensor, other: dist.ProcessGroup) -> None:
    dist.all_reduce(data)


def not_joined(rank: int, data: torch.Tensor, other: dist.ProcessGroup) -> None:
    if rank == 1:
        stuck_elsewhere()
    dist.all_reduce(data)


def stuck_elsewhere() -> None:
    time.sleep(600)


def mismatched(rank: int, data: torch.Tensor, other: dist.ProcessGroup) -> None:
    if rank == 0:
        dist.all_reduce(data)
    else:
        dist.broadcast(data, src=0)
        stuck_elsewhere()


def order_deadlock(rank: int, data: torch.Tensor, other: dist.ProcessGroup) -> None:
    groups = [None, other] if rank == 0 else [other, None]
    for group in groups:
        dist.all_reduce(data, group=group)
        settle(data.device)


def stuck_kernel(rank: int, data: torch.Tensor, other: dist.ProcessGroup) -> None:
    """Only on GPUs: rank 1's stream is busy with something long before its collective."""
    if rank == 1:
        torch.cuda._sleep(int(600 * 1.5e9))
    dist.all_reduce(data)


CASES = {
    "healthy": healthy,
    "not_joined": not_joined,
    "mismatched": mismatched,
    "order_deadlock": order_deadlock,
    "stuck_kernel": stuck_kernel,
}

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 30.0)
