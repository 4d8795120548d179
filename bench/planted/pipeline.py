"""A 1F1B pipeline x data x tensor parallelism with planted faults; NCCL, or gloo without GPUs.

    torchrun --nproc_per_node 8 pipeline.py OUT --shape 2,2,2 [--slow STAGE:LAYERS] [--late RANK:MS] [--hang]

Writes OUT/rank{r}/trace_step{N}.json.gz and OUT/steps.json: ms of every step without the profiler, by rank.
With --hang rank 0 never sends what the next stage waits for, and all ranks dump their flight recorders
into OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

BATCHES, PROFILED = 4, 3


class Job:
    """One rank: its stage's layers, its groups and neighbours."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        stages, copies, parts = options.shape
        self.stage, _ = divmod(self.rank, copies * parts)
        self.num_stages = stages
        self.device = torch.device("cuda", self.rank) if options.gpu else torch.device("cpu")
        mesh = torch.arange(self.world).reshape(stages, copies, parts)
        self.copies = self.member_of([mesh[s, :, t].tolist() for s in range(stages) for t in range(parts)])
        self.parts = self.member_of([mesh[s, c].tolist() for s in range(stages) for c in range(copies)])
        self.before = self.rank - copies * parts if self.stage else None
        self.behind = self.rank + copies * parts if self.stage < stages - 1 else None
        width, rows = (4096, 2048) if options.gpu else (128, 32)
        slow_stage, slow_layers = options.slow
        layers = options.layers + (slow_layers if self.stage == slow_stage else 0)
        kind = {"device": self.device, "dtype": torch.bfloat16 if options.gpu else torch.float32}
        self.weights = [torch.randn(width, width, **kind).mul_(0.02).requires_grad_() for _ in range(layers)]
        self.message = torch.zeros(rows, width, **kind)

    def member_of(self, lists: list[list[int]]) -> dist.ProcessGroup | None:
        """The group that holds this rank, of groups that all ranks make in the same order."""
        groups = [(ranks, dist.new_group(ranks)) for ranks in lists]
        return next(group for ranks, group in groups if self.rank in ranks)

    def forward(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        data.requires_grad_()
        out = data
        for weight in self.weights:
            out = torch.nn.functional.gelu(out @ weight)
        dist.all_reduce(out.detach().clone(), group=self.parts)
        return data, out

    def backward(self, data: torch.Tensor, out: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
        out.backward(torch.ones_like(out) if gradient is None else gradient)
        assert data.grad is not None
        return data.grad

    def exchange(self, peer: int | None, sent: torch.Tensor | None, *, receives: bool) -> torch.Tensor | None:
        """Send to and receive from one neighbour: both at once, or two stages would wait for each other."""
        if peer is None:
            return self.message.clone() if receives and sent is None else None
        received = self.message.clone() if receives else None
        calls = [dist.P2POp(dist.isend, sent.detach(), peer)] if sent is not None else []
        calls += [dist.P2POp(dist.irecv, received, peer)] if received is not None else []
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        return received

    def step(self, late_s: float) -> None:
        """One step of 1F1B."""
        time.sleep(late_s)
        ahead = min(self.num_stages - 1 - self.stage, BATCHES)
        pending = []
        for _ in range(ahead):
            pending.append(self.forward(self.exchange(self.before, None, receives=True)))
            self.exchange(self.behind, pending[-1][1], receives=False)
        data = self.exchange(self.before, None, receives=True)
        for batch in range(BATCHES - ahead):
            pending.append(self.forward(data))
            gradient = self.exchange(self.behind, pending[-1][1], receives=True)
            gradient = self.backward(*pending.pop(0), gradient)
            is_last = batch == BATCHES - ahead - 1
            data = self.exchange(self.before, gradient, receives=not is_last)
            data = self.message.clone() if data is None else data
        for data, out in pending:
            gradient = self.exchange(self.behind, None, receives=True)
            self.exchange(self.before, self.backward(data, out, gradient), receives=False)
        for weight in self.weights:
            dist.all_reduce(weight.grad, group=self.copies)
            weight.grad = None
        self.settle()

    def hang(self) -> None:
        """Rank 0 never sends what the next stage waits for."""
        if self.rank == 0:
            time.sleep(600)
        if self.before is not None:
            dist.recv(self.message, self.before)
        if self.behind is not None:
            dist.send(self.message, self.behind)
        self.settle()
        dist.all_reduce(self.message)
        self.settle()

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def main(options: argparse.Namespace) -> None:
    options.gpu = torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
    if options.gpu:
        torch.cuda.set_device(int(os.environ["RANK"]))
    dist.init_process_group("nccl" if options.gpu else "gloo")
    job, out = Job(options), options.out
    late_rank, late_ms = options.late
    late_s = late_ms / 1e3 if job.rank == late_rank else 0.0
    for _ in range(3):
        job.step(0.0)
    if options.hang:
        from lab.workload import stall
        from lab.workload.rank import RankContext

        stall.LEAST_WAIT_S = 5.0
        with stall.watch_for_stall(out, RankContext.from_env(), 20.0) as progressed:
            job.step(0.0)
            progressed()
            job.hang()
    lengths_ms = []
    for _ in range(12):
        dist.barrier()
        begin = time.perf_counter()
        job.step(late_s)
        lengths_ms.append(1e3 * (time.perf_counter() - begin))
    folder = out / f"rank{job.rank}"
    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if options.gpu else [])]

    def save(profiler: profile) -> None:
        profiler.export_chrome_trace(str(folder / f"trace_step{profiler.step_num}.json.gz"))

    plan = schedule(wait=1, warmup=2, active=PROFILED)
    with profile(activities=activities, schedule=plan, record_shapes=True, on_trace_ready=save) as profiler:
        for _ in range(3 + PROFILED):
            job.step(late_s)
            profiler.step()
    every: list[list[float] | None] = [None] * job.world
    dist.all_gather_object(every, lengths_ms)
    if job.rank == 0:
        (out / "steps.json").write_text(json.dumps(every))
    dist.destroy_process_group()


def pair(text: str) -> tuple[int, float]:
    left, right = text.split(":")
    return int(left), float(right)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", type=lambda text: tuple(map(int, text.split(","))), default=(2, 2, 2))
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--slow", type=lambda text: tuple(map(int, text.split(":"))), default=(-1, 0))
    parser.add_argument("--late", type=pair, default=(-1, 0.0))
    parser.add_argument("--hang", action="store_true")
    main(parser.parse_args())
