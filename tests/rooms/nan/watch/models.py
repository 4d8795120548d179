"""Models that the tests watch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

import lab.nan  # noqa: E402
from lab.rooms.nan.config import NanConfig  # noqa: E402
from lab.rooms.nan.workload.cell import choose_cell  # noqa: E402
from lab.rooms.nan.workload.model import ByteTokenizer, load  # noqa: E402


def tiny(attn="eager", seed=0, layers=4):
    config = NanConfig(experiments=("baseline",), attn=attn, device="cpu", seed=seed, layers=layers)
    return load(config, choose_cell(config, "baseline")).model


def prompt(*texts):
    return ByteTokenizer()(texts or ("dizzy",))


class Body(nn.Module):
    """x + first(x), then second; one of the two, or the sum, may be made to overflow."""

    def __init__(self, after=lambda x: x):
        super().__init__()
        self.first, self.second, self.after = nn.Linear(4, 4), nn.Linear(4, 4), after

    def forward(self, x):
        return self.second(self.after(x + self.first(x)))


def watched(model, *args, **kwargs):
    with torch.no_grad(), lab.nan.watch(model, counter="plain") as w:
        model(*args, **kwargs)
    return w
