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


@pytest.mark.parametrize(("batch", "tokens"), [(1, 128), (4, 512), (3, 77)])
def test_qk_does_two_fifths_of_the_heads_width_more_flops_than_softmax(batch, tokens):
    for spec in SIZES.values():
        ratio = flops.scores_flop(spec, batch, tokens) / flops.softmax_flop(spec, batch, tokens)
        assert ratio == pytest.approx(2 * spec.d_head / 5)


def test_the_products_of_a_plain_loop_over_all_weights_are_the_linear_flops():
    spec, batch, tokens = SIZES["tiny"], 2, 8
    d, ff = spec.d_model, spec.d_ff
    shapes = [(d, d)] * 4 + [(d, ff)] * 2 + [(ff, d)]
    plain = sum(
        2 * batch * tokens * rows * columns for rows, columns in shapes * spec.layers + [(d, spec.vocab)]
    )
    assert flops.linear_flop(spec, batch, tokens) == plain


TWO = flops.ModelSpec(name="two", d_model=6, d_ff=10, layers=3, heads=2, vocab=7)
BATCH, TOKENS = 2, 5


def test_a_small_model_counted_by_hand():
    # One layer: 4 square matrices, 3 of the feed-forward, 2 norms; then embedding, head and the last norm.
    assert TWO.d_head == 3 and TWO.params == 3 * (4 * 36 + 3 * 60 + 12) + 2 * 42 + 6
    assert TWO.gemms_per_layer == 9 and TWO.forward_gemms == 28 and TWO.backward_gemms == 56


def test_scores_are_a_product_per_head_and_softmax_takes_five_flops_per_score():
    scores = BATCH * TWO.heads * TOKENS * TOKENS
    assert scores == 100
    assert flops.scores_flop(TWO, BATCH, TOKENS) == 2 * 3 * 100
    assert flops.softmax_flop(TWO, BATCH, TOKENS) == 500
    assert flops.softmax_flop(SIZES["small"], 4, 512) == 62_914_560


def test_softmax_moves_two_arrays_of_scores_if_fused_and_eight_otherwise():
    assert flops.softmax_bytes(TWO, BATCH, TOKENS, fused=True) == 4 * 2 * 100
    assert flops.softmax_bytes(TWO, BATCH, TOKENS, fused=False) == 4 * 8 * 100


def test_qk_reads_both_factors_and_writes_the_scores():
    factors = 2 * BATCH * TWO.heads * TOKENS * 3
    assert flops.scores_bytes(TWO, BATCH, TOKENS) == 4 * (factors + 100)
    assert flops.scores_bytes(TWO, BATCH, TOKENS, 2) == 2 * (factors + 100)


@pytest.mark.parametrize(("kind", "copies"), [("forward", 1), ("forward_backward", 2), ("training", 4)])
def test_weights_gradients_and_two_moments_are_the_least_memory(kind, copies):
    assert flops.least_memory_bytes(TWO, kind) == 4 * copies * TWO.params


@pytest.mark.parametrize(
    ("phase", "passes"), [("forward", 1), ("backward", 2), ("optimizer", 0), ("step", 0)]
)
def test_backward_multiplies_twice_as_much_as_forward_and_the_optimizer_nothing(phase, passes):
    forward = flops.linear_flop(TWO, BATCH, TOKENS) + 2 * 3 * 600
    assert flops.phase_flop(TWO, BATCH, TOKENS, phase) == passes * forward
