"""What the room says of a model's size, against the published table and a model that is really built."""

from __future__ import annotations

import pytest

from lab.rooms.nsys import flops
from lab.rooms.nsys.flops import SIZES

# Parameters (M), forward GEMMs, forward TFLOP at batch 4 and 512 tokens, attention's share (%), training's
# GB.
PUBLISHED = {
    "small": (128.6, 109, 0.534, 7.2, 2.1),
    "medium": (423.2, 217, 1.794, 5.7, 6.8),
    "large": (969.4, 325, 4.111, 4.7, 15.5),
    "xl": (1998.2, 433, 8.441, 3.8, 32.0),
    "2.7B": (3406.8, 289, 14.192, 2.4, 54.5),
}


@pytest.mark.parametrize("size", PUBLISHED)
def test_sizes_have_the_published_parameters_products_and_flops(size):
    spec = SIZES[size]
    params, gemms, tflop, share, training_gb = PUBLISHED[size]
    assert spec.params / 1e6 == pytest.approx(params, abs=0.06)
    assert spec.forward_gemms == gemms and spec.backward_gemms == 2 * gemms
    assert flops.forward_flop(spec, 4, 512) / 1e12 == pytest.approx(tflop, abs=6e-4)
    in_attention = 2 * spec.layers * flops.scores_flop(spec, 4, 512)
    assert 100 * in_attention / flops.forward_flop(spec, 4, 512) == pytest.approx(share, abs=0.06)
    assert flops.least_memory_bytes(spec, "training") / 1e9 == pytest.approx(training_gb, abs=0.06)


def test_fused_qkv_makes_two_products_fewer_a_layer():
    from lab.rooms.nsys.config import spec_of

    assert spec_of("small", fused_qkv=True).forward_gemms == 85


@pytest.mark.parametrize(("batch", "tokens"), [(1, 128), (4, 512), (3, 77)])
def test_qk_does_two_fifths_of_the_heads_width_more_flops_than_softmax(batch, tokens):
    for spec in SIZES.values():
        ratio = flops.scores_flop(spec, batch, tokens) / flops.softmax_flop(spec, batch, tokens)
        assert ratio == pytest.approx(2 * spec.d_head / 5)


def test_one_layers_scores_are_counted_once():
    # The original counted 25 times too much, or half.
    assert flops.scores_flop(SIZES["small"], 4, 512) == pytest.approx(1.611e9, rel=1e-3)


def test_the_products_of_a_plain_loop_over_all_weights_are_the_linear_flops():
    spec, batch, tokens = SIZES["tiny"], 2, 8
    d, ff = spec.d_model, spec.d_ff
    shapes = [(d, d)] * 4 + [(d, ff)] * 2 + [(ff, d)]
    plain = sum(
        2 * batch * tokens * rows * columns for rows, columns in shapes * spec.layers + [(d, spec.vocab)]
    )
    assert flops.linear_flop(spec, batch, tokens) == plain


def test_ceilings_of_known_gpus_are_those_of_their_data_sheets():
    h200 = flops.peaks("9.0", 132, 1.98e9, 4.814e12, "fp32")
    assert h200.flop_per_s == pytest.approx(66.9e12, rel=1e-3) and h200.units == "plain float32 units"
    a100 = flops.peaks("8.0", 108, 1.41e9, 1.555e12, "bf16")
    assert a100.flop_per_s == pytest.approx(312e12, rel=5e-3) and a100.units == "tensor cores"
    assert flops.peaks("7.0", 80, 1.53e9, 9e11, "bf16").units == "plain float32 units", "Volta has no bf16"
    assert flops.peaks("13.7", 100, 1e9, 1e12, "fp32") is None
