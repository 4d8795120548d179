"""FLOPs and bytes of fused ops, norms and scans, counted by hand from the shapes."""

from __future__ import annotations

import pytest

from lab.perfmodel.calls import OpCall
from lab.perfmodel.communication import collective_work
from lab.perfmodel.ops import work_of

HALF = "c10::Half"
X, WEIGHT = [6, 40], [40]  # 240 elements, 2 bytes each


def _work(name: str, *shapes: list[int]):
    return work_of(OpCall(name, list(shapes), [HALF if shape else "" for shape in shapes]))


@pytest.mark.parametrize(
    ("name", "shapes", "flops", "elements"),
    [
        ("aiter::rms_norm", [X, WEIGHT], 5 * 240, 2 * 240 + 40),
        ("aiter::rmsnorm2d_fwd", [X, WEIGHT], 5 * 240, 2 * 240 + 40),
        ("_C::rms_norm", [[1], X, WEIGHT], 5 * 240, 2 * 240 + 40),
        ("_C::fused_add_rms_norm", [X, X, WEIGHT], 6 * 240, 4 * 240 + 40),
        ("aiter::rmsnorm2d_fwd_with_add_ck", [[1], X, X, X, WEIGHT], 6 * 240, 4 * 240 + 40),
        ("aiter::_groupnorm_run", [[6, 4, 10], [], [4]], 5 * 240, 2 * 240 + 4),
        ("_C::silu_and_mul", [[1], X], 240, 1.5 * 240),
    ],
)
def test_a_fused_loop_counts_its_input_once_and_its_weight(name, shapes, flops, elements):
    work = _work(name, *shapes)
    assert (work.flops, work.num_bytes) == (flops, 2 * elements)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("aten::native_layer_norm", [X, [1], WEIGHT, WEIGHT]),
        ("aten::native_batch_norm", [X, WEIGHT, WEIGHT]),
        ("aten::cudnn_batch_norm", [X, WEIGHT, WEIGHT]),
        ("aten::miopen_batch_norm", [X, WEIGHT, WEIGHT]),
        ("aten::native_group_norm", [X, WEIGHT, WEIGHT]),
    ],
)
def test_a_norm_reads_its_weight_and_its_bias(name, shapes):
    work = _work(name, *shapes)
    assert (work.flops, work.num_bytes) == (5 * 240, 2 * (2 * 240 + 2 * 40))
    assert _work(name, *shapes[:-1]).num_bytes == 2 * (2 * 240 + 40)  # without a bias
    without_weight = [shape if shape != WEIGHT else [] for shape in shapes]
    assert _work(name, *without_weight).num_bytes == 2 * (2 * 240)


def test_a_norm_without_a_bias_never_reads_one():
    assert _work("aten::_fused_rms_norm", X, [1], WEIGHT, WEIGHT).num_bytes == 2 * (2 * 240 + 40)


def test_the_gradient_of_a_norm_takes_twelve_operations_per_element():
    work = _work("aten::native_layer_norm_backward", X, X)
    assert (work.flops, work.num_bytes) == (12 * 240, 2 * 3 * 240)


def test_a_selective_scan_takes_nine_operations_per_state_and_token():
    batch, channels, tokens, states = 2, 8, 16, 4
    u, a = [batch, channels, tokens], [channels, states]
    b = [batch, 1, states, tokens]
    elements = batch * channels * tokens
    bare = _work("mamba_ssm::selective_scan_fwd", u, u, a, b, b)
    assert bare.flops == 9 * states * elements
    assert bare.num_bytes == 2 * (3 * elements + 2 * batch * states * tokens)
    # D * u is added, then all is gated by z: one operation per element each, and z is read.
    gated = _work("mamba_ssm::selective_scan_fwd", u, u, a, b, b, [channels], u)
    assert gated.flops == bare.flops + 2 * elements
    assert gated.num_bytes == bare.num_bytes + 2 * elements


def test_all_to_all_sends_what_is_for_others_and_adds_nothing():
    work = collective_work("all_to_all", 100, 100, HALF, 8)
    assert (work.num_bytes, work.flops) == (2 * 100 * 7 / 8, 0)
