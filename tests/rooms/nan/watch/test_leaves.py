"""Which tensors are leaves."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from tests.rooms.nan.watch.models import watched  # noqa: E402


def test_nested_outputs_and_keyword_inputs_are_watched_and_masks_are_not():
    class Nested(nn.Module):
        def forward(self, *, states, attention_mask):
            return {"hidden": (states, [states * float("inf")]), "past_key_values": states * float("nan")}

    w = watched(Nested(), states=torch.ones(2), attention_mask=torch.full((2,), -float("inf")))
    leaves = {(t.side, t.leaf): t.counts[:3].sum() for t in w.totals()}
    assert leaves == {("in", "states"): 0, ("out", "hidden[0]"): 0, ("out", "hidden[1][0]"): 2}
