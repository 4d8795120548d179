"""Each change counts what it touched."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402

from lab.rooms.nan.workload.changes import attention_modules, clip_attention, scale_attention, set_epsilon  # noqa: E402
from lab.rooms.nan.workload.model import (  # noqa: E402
    ByteTokenizer,
    first_logits,
)
from tests.rooms.nan.workload.runs import prompt, tiny  # noqa: E402


def test_a_change_that_touches_nothing_is_invalid():
    assert set_epsilon(nn.Linear(2, 2), 1e-3).status == "invalid"
    assert scale_attention(nn.Linear(2, 2), 0.5).status == "invalid"


def test_scaling_by_one_is_the_baseline_and_scaling_the_queries_is_scaling_the_scores():
    model, (ids, mask) = tiny(dtype="float32"), prompt()
    plain = first_logits(model, ids, mask)
    scale_attention(model, 1.0)
    assert torch.equal(first_logits(model, ids, mask), plain)
    scale_attention(model, 0.5)
    scaled, model = first_logits(model, ids, mask), tiny(dtype="float32")
    for module in attention_modules(model).values():
        del module.scaling
    scale_attention(model, 0.5)
    for module in attention_modules(model).values():
        module.scaling = module.head_dim**-0.5
    assert torch.allclose(first_logits(model, ids, mask), scaled, atol=1e-6)


def test_clipping_keeps_the_structure_at_any_batch_size():
    model = tiny(dtype="float32")
    ids, mask = ByteTokenizer()(("dizzy", "a longer prompt"))
    plain = first_logits(model, ids, mask)
    clip_attention(model, 1e9)
    assert torch.equal(first_logits(model, ids, mask), plain)
