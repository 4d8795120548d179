"""The guard's own example: a tiny model, a few steps, and a cause planted in one of them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.rooms.nan.config import PLANTS
from lab.rooms.nan.watch.guard.guard import Guard
from lab.rooms.nan.watch.watch import NonFiniteError

STEPS, FAULT_STEP, WIDTH, WORDS = 6, 3, 32, 64
# cause -> (stage, module) that must be found
EXPECTED = {
    "batch": ("batch", ""),
    "forward": ("forward", "blocks.1"),
    "inplace": ("forward", "blocks.1"),
    "loss": ("loss", ""),
    "backward": ("act_grads", "blocks.1"),
    "gradient": ("param_grads", "blocks.0.up"),
    "optimizer": ("weights_after", "embed"),
    "weights": ("weights_before", "blocks.1.up"),
    "scaler": ("loss", ""),
}


class Block(nn.Module):
    """Two layers around code of its own, in which a cause may be planted."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.plant = ""

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.norm(x))
        if self.plant == "forward":
            y = y / 0
        elif self.plant == "backward":
            y = y + (y * 0).abs().sqrt()
        elif self.plant == "inplace":
            y += torch.full_like(y, 3e38)
            y += torch.full_like(y, 3e38)
        out: Tensor = x + self.down(y)
        return out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def train_tiny(plant: str, on_bad: str, seed: int, out: Path | None) -> tuple[Guard, dict[str, Any]]:
    """Train a few steps with the cause planted in step 3; (guard, what was planted and must be found)."""
    torch.manual_seed(seed)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kind: Any = getattr(torch.amp, "GradScaler", None) if hasattr(torch, "amp") else None
    scaler = kind("cpu", init_scale=2.0**10) if plant == "scaler" and kind is not None else None
    guard = Guard(model, optimizer, scaler, on_bad=on_bad, out=out)
    with contextlib.suppress(NonFiniteError), guard:
        for step in range(STEPS):
            _one_step(
                model, optimizer, scaler, plant if step >= FAULT_STEP else "", is_first=step == FAULT_STEP
            )
    stage, module = EXPECTED.get(plant, ("", ""))
    planted = {"plant": plant, "what": PLANTS[plant], "step": FAULT_STEP, "stage": stage, "module": module}
    return guard, planted


def _one_step(model: Model, optimizer: Any, scaler: Any, plant: str, *, is_first: bool) -> None:
    block: Any = model.blocks[1]
    block.plant = plant
    x = torch.randn(8, WORDS)
    if plant == "batch" and is_first:
        x[0, 0] = float("nan")
    if plant == "optimizer" and is_first:
        optimizer.param_groups[0]["lr"] = float("nan")
    optimizer.zero_grad()
    spoil = plant == "gradient" and is_first
    up: Any = model.blocks[0]
    handle = up.up.weight.register_hook(lambda grad: grad * float("inf")) if spoil else None
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, torch.zeros(8, dtype=torch.long))
    if plant == "loss":
        loss = loss + torch.log(loss * 0)
    if plant == "scaler":
        loss = loss * float("nan")
    (scaler.scale(loss) if scaler is not None else loss).backward()
    if handle is not None:
        handle.remove()
    if plant == "weights" and is_first:
        with torch.no_grad():
            block.up.weight[0, 0] = float("nan")
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
