"""A small training job with one planted cause of differences between its runs."""

from __future__ import annotations

import os

import torch
from torch import nn

from lab.rooms.trials.workload.replay.training import Training

STEPS = 3
_library = torch.library.Library("planted", "DEF")
_library.define("atomic_add(Tensor x, bool loose) -> Tensor")


def _atomic_add(x, loose):
    """A weighted sum over rows; loose: with weights of this moment, as if in another order."""
    weight = 1.37 + (int.from_bytes(os.urandom(4), "big") / 2**32 if loose else 0)
    total = torch.zeros_like(x[0])
    for row in x:
        total = total * weight + row
    return total + x


_library.impl("atomic_add", _atomic_add, "CompositeExplicitAutograd")
torch.library.register_autograd("planted::atomic_add", lambda _, grad: (grad, None))


class Block(nn.Module):
    def __init__(self, plant, step, clock):
        super().__init__()
        self.plant, self.step, self.clock = plant, step, clock
        self.up, self.act, self.drop, self.down = (
            nn.Linear(8, 12),
            nn.GELU(),
            nn.Dropout(0.2),
            nn.Linear(12, 8),
        )
        self.mix = Mix(self)

    def forward(self, x):
        return x + self.down(self.drop(self.mix(self.act(self.up(x)))))


class Mix(nn.Module):
    def __init__(self, block):
        super().__init__()
        self._block = [block]  # no child of its own child

    def forward(self, x):
        block = self._block[0]
        return torch.ops.planted.atomic_add(x, block.plant == "atomic" and block.clock[0] >= block.step)


class Net(nn.Module):
    def __init__(self, plant, where, step, clock):
        super().__init__()
        self.blocks = nn.ModuleList(Block(plant if at == where else "", step, clock) for at in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(out, plant, *, where, step, seed, run, rank=0, odd_rank=0, world=1, level="op", repeats=1):
    """One run of the job, recorded in `out`; in run 1 the plant `flip` and `rank` are at work."""
    torch.manual_seed(seed)
    steps, fired = [0], []
    net = Net(plant if rank == odd_rank or plant != "atomic" else "", where, step, steps)
    data = [(torch.randn(6, 8), torch.randint(0, 3, (6,))) for _ in range(6)]
    torch.manual_seed(seed + rank)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = nn.parallel.DistributedDataParallel(net) if world > 1 else net
    broken = run == 1 and rank == odd_rank

    def flip(grad):
        if plant == "flip" and broken and steps[0] == step and not fired:
            fired.append(1)
            grad = grad.clone()
            grad.detach().numpy().view("int32").reshape(-1)[5] ^= 1
            return grad
        return None

    net.blocks[where].up.weight.register_hook(flip)
    if plant == "rank":

        def disturb(module, inputs, result):
            if broken and steps[0] >= step:
                result.detach().numpy().reshape(-1)[0] += 1e-3

        net.blocks[where].act.register_forward_hook(disturb)
    recorder = Training(out, steps=STEPS, repeats=repeats, level=level, leave=False)
    recorder.start()
    try:
        for number in range(STEPS):
            steps[0] = number + 1
            if plant == "dropout" and steps[0] == step and rank == odd_rank:
                torch.seed()
            at = number if plant != "order" or run == 0 or steps[0] < step else 5 - number
            x, y = data[at]
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        recorder.stop(ended=True)


def expected(plant, *, where, step, odd_rank=0, world=1):
    """(verdict, step, rank, module, direction, kind, op) of the first difference."""
    block = f"blocks.{where}"
    # Data order is every rank's; which is named first does not matter.
    return {
        "atomic": (
            "run-to-run",
            step,
            odd_rank,
            f"{block}.mix",
            "forward",
            "op",
            "planted.atomic_add.default",
        ),
        "dropout": ("run-to-run", step, odd_rank, "blocks.0.drop", "forward", "op", "aten.bernoulli_.float"),
        "order": ("input pipeline", step, 0, "", "start", "input", "batch"),
        "flip": ("run-to-run", step, odd_rank, f"{block}.up", "backward", "grad", f"{block}.up.weight"),
        "rank": ("run-to-run", step, odd_rank, f"{block}.act", "forward", "module", "GELU"),
    }[plant]


PLANTS = ("atomic", "dropout", "order", "flip", "rank")
