"""Training on two gloo ranks, started by the test beside this; prints one JSON line per case."""

from __future__ import annotations

import json
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn

from lab import nan
from tests.rooms.nan.watch.guard.zoo_faults import Switch
from tests.rooms.nan.watch.zoo_clean import bits, x

STEPS, FAULT_STEP = 3, 1


class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.switch, self.how = Switch(), ""

    def forward(self, x):
        y = self.first(x)
        if self.switch.on and self.how == "forward":
            y = y / 0
        if self.switch.on and self.how == "backward":
            y = y + (y * 0).abs().sqrt()
        return self.second(y)


def ddp(model):
    return nn.parallel.DistributedDataParallel(model)


def fsdp(model):
    from torch.distributed.fsdp import fully_shard

    for part in (model.first, model.second, model):
        fully_shard(part, mesh=MESH)
    return model


def tensor_parallel(model):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(model, MESH, {"first": ColwiseParallel(), "second": RowwiseParallel()})


def train(wrap, how, bad_rank, guarded, on_bad="keep", out=None):
    torch.manual_seed(0)
    inner = Root()
    inner.how, rank = how, dist.get_rank()
    same_data = wrap is tensor_parallel
    model = wrap(inner)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    found = []
    g = nan.guard(model, optimizer, on_bad=on_bad, out=out) if guarded else None
    if g:
        g.__enter__()
    for step in range(STEPS):
        inner.switch.on = step == FAULT_STEP and rank == bad_rank
        optimizer.zero_grad()
        out = model(x(8, 4) * (1 if same_data else 1 + rank))
        out.square().mean().backward()
        if inner.switch.on and how == "weight":
            with torch.no_grad():
                local = getattr(inner.second.weight, "_local_tensor", inner.second.weight)
                local[0, 0] = float("nan")
        found += [getattr(p.grad, "_local_tensor", p.grad).clone() for p in model.parameters()]
        optimizer.step()
    found += [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]
    if g:
        g.__exit__(None, None, None)
    return g, found


def main():
    global MESH
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    from torch.distributed.device_mesh import init_device_mesh

    MESH = init_device_mesh("cpu", (2,))
    out = sys.argv[1]
    for wrap in (ddp, fsdp, tensor_parallel):
        _, plain = train(wrap, "", -1, False)
        g, watched = train(wrap, "", -1, True)
        same = all(bits(a) == bits(b) for a, b in zip(plain, watched, strict=True))
        say(wrap, "clean", g, same=same)
        for how in ("forward", "backward", "weight"):
            for on_bad in ("keep", "replay"):
                records = f"{out}/{wrap.__name__}_{how}" if on_bad == "keep" else None
                g, _ = train(wrap, how, 1, True, on_bad, records)
                say(wrap, how, g, on_bad=on_bad)
    dist.destroy_process_group()


def say(wrap, how, g, **more):
    first = g.first
    found = {"wrap": wrap.__name__, "how": how, "rank": dist.get_rank(), "status": g.status}
    found |= {"failed": g.training.state.failed, "notes": g.notes + g.training.watch.notes}
    if first is not None:
        op = first.op.name if first.op else first.op_missing
        found |= {"stage": first.stage, "module": first.module, "step": first.step, "op": op}
        found |= {"unsure": first.unsure, "why": first.reason}
    print(json.dumps({**found, **more, "seen": g.not_seen()}), flush=True)


if __name__ == "__main__":
    main()
