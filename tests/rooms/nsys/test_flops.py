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


# Multiprocessors, boost clock (MHz) and dense TFLOP/s as the data sheets have them.
DATA_SHEETS = {
    "P100": ("6.0", 56, 1480, {"fp32": 10.6, "fp16": 21.2}),
    "P40": ("6.1", 30, 1531, {"fp32": 11.76}),
    "V100": ("7.0", 80, 1530, {"fp32": 15.7, "fp16": 125}),
    "T4": ("7.5", 40, 1590, {"fp32": 8.1, "fp16": 65}),
    "A100": ("8.0", 108, 1410, {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312}),
    "A10": ("8.6", 72, 1695, {"fp32": 31.2, "tf32": 62.5, "bf16": 125, "fp16": 125}),
    "L40S": ("8.9", 142, 2520, {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362}),
    "H100": ("9.0", 132, 1830, {"tf32": 494.7, "bf16": 989.4, "fp16": 989.4}),
}


@pytest.mark.parametrize("gpu", DATA_SHEETS)
def test_a_gpu_multiplies_as_fast_as_its_data_sheet_says(gpu):
    capability, sm_count, clock_mhz, tflops = DATA_SHEETS[gpu]
    for dtype, tflop in tflops.items():
        found = flops.peaks(capability, sm_count, clock_mhz * 1e6, 1e12, dtype)
        assert found.flop_per_s / 1e12 == pytest.approx(tflop, rel=0.02), dtype
        cores = "tensor cores" if gpu != "P100" else "plain units, two float16 values at once"
        assert found.units == ("plain float32 units" if dtype == "fp32" else cores), dtype
        assert found.bytes_per_s == 1e12


@pytest.mark.parametrize(
    ("capability", "fp32", "tf32", "bf16", "fp16"),
    [
        ("6.0", 128, 128, 128, 256),
        ("6.1", 256, 256, 256, 256),
        ("7.0", 128, 128, 128, 1024),
        ("7.5", 128, 128, 128, 1024),
        ("8.0", 128, 1024, 2048, 2048),
        ("8.6", 256, 512, 1024, 1024),
        ("8.9", 256, 512, 1024, 1024),
        ("9.0", 256, 2048, 4096, 4096),
        ("10.0", 256, 4096, 8192, 8192),
    ],
)
def test_flops_per_clock_and_multiprocessor_are_those_of_the_table(capability, fp32, tf32, bf16, fp16):
    found = [flops.peaks(capability, 1, 1.0, None, dtype) for dtype in ("fp32", "tf32", "bf16", "fp16")]
    assert [one.flop_per_s for one in found] == [fp32, tf32, bf16, fp16]
    assert all(one.bytes_per_s is None for one in found)


@pytest.mark.parametrize(
    ("sm_count", "clock_hz", "known"), [(0, 1e9, False), (1, 0.0, False), (1, 1.0, True)]
)
def test_a_gpu_without_multiprocessors_or_clock_has_no_ceiling(sm_count, clock_hz, known):
    assert (flops.peaks("9.0", sm_count, clock_hz, None, "fp32") is not None) is known


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
    assert flops.softmax_bytes(TWO, BATCH, TOKENS, 2, fused=True) == 2 * 2 * 100


def test_qk_reads_both_factors_and_writes_the_scores():
    factors = 2 * BATCH * TWO.heads * TOKENS * 3
    assert flops.scores_bytes(TWO, BATCH, TOKENS) == 4 * (factors + 100)
    assert flops.scores_bytes(TWO, BATCH, TOKENS, 2) == 2 * (factors + 100)


def test_linear_layers_move_the_arrays_of_a_plain_loop_over_all_weights():
    d, ff, rows = TWO.d_model, TWO.d_ff, BATCH * TOKENS
    shapes = ([(d, d)] * 4 + [(d, ff)] * 2 + [(ff, d)]) * TWO.layers + [(d, TWO.vocab)]
    arrays = sum(rows * inner + inner * outer + rows * outer for inner, outer in shapes)
    assert flops.linear_bytes(TWO, BATCH, TOKENS) == 4 * arrays
    assert flops.linear_bytes(TWO, BATCH, TOKENS, 2) == 2 * arrays


@pytest.mark.parametrize(("kind", "copies"), [("forward", 1), ("forward_backward", 2), ("training", 4)])
def test_weights_gradients_and_two_moments_are_the_least_memory(kind, copies):
    assert flops.least_memory_bytes(TWO, kind) == 4 * copies * TWO.params


@pytest.mark.parametrize(
    ("phase", "passes"), [("forward", 1), ("backward", 2), ("optimizer", 0), ("step", 0)]
)
def test_backward_multiplies_twice_as_much_as_forward_and_the_optimizer_nothing(phase, passes):
    forward = flops.linear_flop(TWO, BATCH, TOKENS) + 2 * 3 * 600
    assert flops.phase_flop(TWO, BATCH, TOKENS, phase) == passes * forward


def test_the_sizes_have_their_published_shapes_and_names():
    shapes = {name: (one.d_model, one.d_ff, one.layers, one.heads) for name, one in SIZES.items()}
    assert shapes == {
        "small": (768, 3072, 12, 12),
        "medium": (1024, 4096, 24, 16),
        "large": (1280, 5120, 36, 20),
        "xl": (1600, 6400, 48, 25),
        "2.7B": (2560, 10240, 32, 32),
        "tiny": (64, 256, 2, 4),
    }
    assert all(name == one.name and one.vocab == 10_000 and not one.fused_qkv for name, one in SIZES.items())
    assert {"tiny", *flops.PUBLISHED} == set(SIZES)
