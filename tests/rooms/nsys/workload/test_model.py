"""The measured model: its size is as stated, it is causal, and the annotated attention runs."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

from lab.rooms.nsys.config import spec_of  # noqa: E402
from lab.rooms.nsys.flops import SIZES, ModelSpec  # noqa: E402
from lab.rooms.nsys.workload import model as models  # noqa: E402
from lab.rooms.nsys.workload.model import Attention, Transformer, loss_of  # noqa: E402

pytestmark = pytest.mark.torch
TINY = SIZES["tiny"]


def quiet(name):
    return contextlib.nullcontext()


def plain(softmax="plain"):
    return Attention(softmax, quiet, annotated=False)


def build(spec=TINY, context=8, **choices):
    chosen = {"annotated": True, "softmax": "plain", "mark": quiet, **choices}
    return Transformer(spec, context, Attention(**chosen)).fill(0)


@pytest.mark.parametrize("fused_qkv", [False, True])
def test_it_has_as_many_parameters_as_its_shape_says(fused_qkv):
    spec = spec_of("tiny", fused_qkv=fused_qkv)
    assert sum(p.numel() for p in build(spec).parameters()) == spec.params


def test_a_token_sees_no_later_one():
    model, ids = build(context=8), torch.arange(8)[None]
    changed = ids.clone()
    changed[0, 5:] = 99
    same = torch.isclose(model(ids), model(changed), atol=1e-6).all(-1)[0]
    assert same.tolist() == [True] * 5 + [False] * 3


def test_ranges_change_no_output():
    ids = torch.arange(8)[None]
    assert torch.equal(build(annotated=True)(ids), build(annotated=False)(ids))


def test_plain_attention_is_torchs_own_within_rounding():
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 16, 8) for _ in range(3))
    future = torch.ones(16, 16, dtype=torch.bool).triu(1)
    ours = plain()(query, key, value, future)
    theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_both_softmaxes_agree():
    x = 10 * torch.randn(3, 5, 7)
    assert torch.allclose(models.plain_softmax(x), models.fused_softmax(x), atol=1e-6)


def test_the_ranges_inside_attention_are_named_as_published():
    seen = []

    @contextlib.contextmanager
    def mark(name):
        seen.append(name)
        yield

    build(mark=mark)(torch.zeros(1, 8, dtype=torch.long))
    assert (
        seen
        == [
            "scaled_dot_product_attention",
            "computing_attention_scores",
            "applying_mask",
            "computing_softmax",
            "final_matmul",
        ]
        * TINY.layers
    )


def test_the_loss_is_a_cross_entropy_that_training_lowers():
    model, ids = (
        build(context=16),
        torch.randint(TINY.vocab, (2, 17), generator=torch.Generator().manual_seed(0)),
    )
    first = loss_of(model, ids)
    assert first.item() == pytest.approx(torch.log(torch.tensor(float(TINY.vocab))).item(), rel=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model, ids).backward()
        optimizer.step()
    assert loss_of(model, ids).item() < first.item() - 0.5


def test_forward_runs_as_many_matrix_products_as_the_shape_says():
    from torch.profiler import ProfilerActivity, profile

    for fused in (False, True):
        spec = ModelSpec(name="x", d_model=16, d_ff=32, layers=3, heads=2, vocab=50, fused_qkv=fused)
        model = build(spec)
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            model(torch.zeros(1, 8, dtype=torch.long))
        count = sum(
            e.count for e in recorded.key_averages() if e.key in ("aten::mm", "aten::bmm", "aten::addmm")
        )
        assert count == spec.forward_gemms
