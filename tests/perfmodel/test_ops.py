"""FLOPs and bytes of ops by their arguments; figures of TraceLens' published reports where it has them."""

from __future__ import annotations

import pytest

from lab.perfmodel.calls import OpCall
from lab.perfmodel.communication import collective_work
from lab.perfmodel.ops import has_model, work_of

BF16, F32 = "c10::BFloat16", "float"
MIB = 2**20


def _work(name: str, dims, types, concrete=(), strides=()):
    return work_of(OpCall(name, dims, types, strides, concrete))


def _attention(name: str, q, kv, at: int, causal_at: int, causal: str):
    width = max(causal_at + 1, at + 3)
    dims = [[q, kv, kv][i - at] if at <= i < at + 3 else [] for i in range(width)]
    concrete = ["" for _ in range(width)]
    concrete[causal_at] = causal
    return _work(name, dims, [BF16 if shape else "Scalar" for shape in dims], concrete)


def test_attention_forward_counts_half_under_a_square_causal_mask():
    shape = [16, 16, 559, 64]
    work = _attention("aten::_scaled_dot_product_flash_attention", shape, shape, 0, 4, "True")
    assert (work.flops, work.num_bytes / MIB) == (10.239377408e9, 69.875)
    full = _attention("aten::_scaled_dot_product_flash_attention", shape, shape, 0, 4, "False")
    assert full.flops == 2 * work.flops


@pytest.mark.parametrize(
    ("n_kv", "gflops", "mib"), [(2048, 343.59738368, 224.0), (11040, 1852.2046464, 786.0)]
)
def test_attention_backward_is_two_and_a_half_forwards(n_kv, gflops, mib):
    """A published row of FlashAttnFunc: 2 x 2048 x 32 x 128 against n_kv keys."""
    work = _attention(
        "aten::_scaled_dot_product_flash_attention_backward",
        [2, 32, 2048, 128],
        [2, 32, n_kv, 128],
        1,
        11,
        "False",
    )
    assert work.kind == "SDPA_bwd" and work.flops / 1e9 == pytest.approx(gflops)
    assert work.num_bytes / MIB == pytest.approx(mib)


def test_grouped_queries_read_fewer_keys():
    shape, fewer = [1, 32, 128, 64], [1, 8, 128, 64]
    every = _attention("aten::_scaled_dot_product_flash_attention", shape, shape, 0, 4, "False")
    grouped = _attention("aten::_scaled_dot_product_flash_attention", shape, fewer, 0, 4, "False")
    assert grouped.flops == every.flops and grouped.params["H_KV"] == 8
    assert every.num_bytes - grouped.num_bytes == 2 * 2 * 24 * 128 * 64


CONV = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]


@pytest.mark.parametrize(
    ("x", "weight", "changed", "gflops", "mib"),
    [
        ([2, 896, 59, 91], [896, 896, 1, 1], {}, 17.241276416, 38.2333984375),
        ([2, 896, 59, 91], [896, 56, 3, 3], {4: "[1, 1]", 8: "16"}, 9.698217984, 37.5634765625),
        (
            [2, 224, 470, 725],
            [224, 56, 3, 3],
            {3: "[2, 2]", 4: "[1, 1]", 8: "4"},
            38.52237312,
            364.2760009765625,
        ),
    ],
)
def test_convolutions_count_as_published(x, weight, changed, gflops, mib):
    concrete = [changed.get(at, text) for at, text in enumerate(CONV)]
    types = [BF16, BF16, "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]
    work = _work("aten::convolution", [x, weight, [], [], [], [], [], [], []], types, concrete)
    assert work.kind == "CONV_fwd" and work.flops / 1e9 == pytest.approx(gflops)
    assert work.num_bytes / MIB == pytest.approx(mib)


@pytest.mark.parametrize(("mask", "times"), [("[True, True, False]", 2), ("[False, True, True]", 1), ("", 2)])
def test_each_gradient_of_a_convolution_costs_a_forward(mask, times):
    x, weight = [2, 896, 59, 91], [896, 896, 1, 1]
    types = [BF16, BF16, BF16, *["ScalarList"] * 4, "Scalar", "ScalarList", "Scalar", "ScalarList"]
    concrete = ["", "", "", "[0]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", mask]
    work = _work("aten::convolution_backward", [x, x, weight, *[[]] * 8], types, concrete)
    assert work.kind == "CONV_bwd" and work.flops / 1e9 == pytest.approx(times * 17.241276416)
    assert work.num_bytes / MIB == pytest.approx(times * 38.2333984375)


def test_a_transposed_convolution_counts_its_input():
    concrete = [*CONV[:3], "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"]
    types = [F32, F32, "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"]
    work = _work("aten::convolution", [[1, 8, 4, 4], [8, 3, 2, 2], *[[]] * 7], types, concrete)
    assert work.flops == 2 * (8 * 16) * (3 * 4)
    assert work.num_bytes == 4 * (8 * 16 + 8 * 3 * 4 + 3 * 8 * 8)


def test_norms_count_five_per_element_and_read_their_parameters():
    work = _work(
        "aten::native_layer_norm",
        [[1, 25089, 768], [], [768], [768], []],
        [BF16, "ScalarList", BF16, BF16, "Scalar"],
    )
    assert work.flops == pytest.approx(0.096346368e9, rel=1e-4)  # published, with 6 more per channel
    assert work.num_bytes / MIB == pytest.approx(73.51171875, rel=1e-3)
    assert (work.params["num_channels"], work.params["has_bias"]) == (768, True)
    batch = _work(
        "aten::native_batch_norm", [[8, 32, 7, 7], [32], [32]], [F32, F32, F32], ["", "", "", "", "", "False"]
    )
    assert (batch.params["num_channels"], batch.params["is_training"]) == (32, False)


def test_reductions_over_an_axis_keep_the_others():
    work = _work("aten::sum", [[4, 6, 8], [], []], [F32, "ScalarList", "Scalar"], ["", "[0, -1]", "False"])
    assert (work.params["num_output_elems"], work.num_bytes) == (6, 4 * (192 + 6))
    assert _work("aten::sum", [[4, 6], []], [F32, ""], ["", ""]).params["num_output_elems"] == 1
    assert _work("aten::max", [[4, 6], [4, 6]], [F32, F32]) is None


def test_softmax_and_its_backward_are_reductions():
    forward = _work("aten::_softmax", [[8, 128], [], []], [BF16, "Scalar", "Scalar"], ["", "-1", "False"])
    backward = _work("aten::_softmax_backward_data", [[8, 128], [8, 128]], [BF16, BF16])
    assert (forward.kind, forward.flops, forward.num_bytes) == ("Reduce_fwd", 5120, 4096)
    assert (backward.kind, backward.flops, backward.num_bytes) == ("Reduce_bwd", 4096, 6144)


def test_grouped_products_by_both_layouts():
    rows = _work("aten::_grouped_mm", [[96, 64], [4, 64, 32], [4]], [BF16, BF16, "int"])
    assert (rows.kind, rows.flops, rows.params["G"]) == ("GroupedGEMM", 2 * 96 * 64 * 32, 4)
    assert rows.num_bytes == 2 * (96 * 64 + 4 * 64 * 32 + 96 * 32)
    weights = _work("aten::_grouped_mm", [[64, 96], [96, 32], [4]], [BF16, BF16, "int"])
    assert weights.flops == 2 * 64 * 96 * 32 and weights.num_bytes == 2 * (64 * 96 + 96 * 32 + 4 * 64 * 32)


def test_elementwise_ops_broadcast_and_the_wider_tensor_gives_the_type():
    work = _work("aten::add_", [[4, 1], [3]], [BF16, F32])
    assert (work.flops, work.num_bytes) == (12, 4 * 2 + 3 * 4 + 12 * 4)
    scalar = _work("aten::mul", [[8], []], [F32, "double"])
    assert scalar.num_bytes == 8 * 4 + 8 + 8 * 4
    assert _work("aten::mul", [[4], [3]], [F32, F32]) is None


@pytest.mark.parametrize("name", ["aten::cat", "aten::empty", "evil::mul", "mul", "aten::"])
def test_what_no_model_knows_has_none(name):
    assert not has_model(name)


@pytest.mark.parametrize(
    "name",
    [
        "aten::mm",
        "aten::convolution",
        "aten::native_layer_norm",
        "aten::mul",
        "aten::copy_",
        "aten::sum",
        "aten::_grouped_mm",
        "aten::_softmax",
        "aten::_scaled_dot_product_flash_attention",
        "aten::convolution_backward",
    ],
)
@pytest.mark.parametrize(
    "dims", [[], [[]], [["x"]], [[-1, 2], [2, 3], [1]], [[4, 4]] * 9, [[1 << 40] * 8] * 9, [[[1]], 7, None]]
)
def test_odd_arguments_are_unknown_or_numbers_and_never_an_error(name, dims):
    work = _work(name, dims, [BF16] * len(dims), ["[0, 0]"] * len(dims))
    assert work is None or (work.flops >= 0 and work.num_bytes >= 0)


@pytest.mark.parametrize(
    ("op", "dims", "types", "concrete", "flops", "num_bytes"),
    [
        ("aten::eq", [[4, 8], []], [F32, "Scalar"], ("", "0"), 32, 4 * 32 + 32),
        ("aten::addcmul_", [[8], [8], [8]], [F32, F32, F32], (), 24, 4 * 32),
        ("aten::fill_", [[4, 8], []], [F32, "Scalar"], (), 0, 128),
        ("aten::masked_fill_", [[4, 8], [8], []], [F32, "bool", "Scalar"], (), 0, 2 * 128 + 8),
        ("aten::where", [[8], [4, 8], []], ["bool", F32, F32], (), 0, 8 + 128 + 4 + 128),
        ("aten::cat", [[[2, 3], [4, 3]], []], ["TensorList", "Scalar"], (), 0, None),
        ("aten::_foreach_addcdiv_", [[[8], [4, 2]]], ["TensorList"], (), 48, None),
        ("_C::rms_norm", [[2, 8], [2, 8], [8]], [BF16] * 3, (), 80, 2 * (32 + 8)),
        ("_C::fused_add_rms_norm", [[2, 8], [2, 8], [8]], [BF16] * 3, (), 96, 2 * (64 + 8)),
        ("sgl_kernel::silu_and_mul", [[2, 8], [2, 16]], [BF16] * 2, (), 32, 2 * 48),
        (
            "_C::rotary_embedding",
            [[2], [2, 64], [2, 16], [], [99, 8], []],
            ["long int", BF16, BF16, "Scalar", BF16, "Scalar"],
            ("", "", "", "16", "", "True"),
            3 * 160 / 2,  # half of each head is rotated
            2 * 2 * 160,
        ),
        (
            "triton_poi_fused__unsafe_view_mul_silu_2",
            [[4, 8], [4, 8], []],
            [BF16, BF16, "Scalar"],
            (),
            64,
            128,
        ),
        ("triton_red_fused_add_mean_mul_pow_rsqrt_0", [[4, 8], [8]], [F32, F32], (), 160, 160),
        ("sglang::store_cache", [[2, 8], [2, 8]], [BF16, BF16], (), 0, 2 * 2 * 32),
    ],
)
def test_further_ops_count_what_their_shapes_tell(op, dims, types, concrete, flops, num_bytes):
    work = _work(op, dims, types, concrete)
    assert work.flops == flops
    assert work.num_bytes == num_bytes if num_bytes is not None else work.num_bytes != work.num_bytes


def test_lists_without_recorded_sizes_have_no_flops():
    assert _work("aten::_foreach_add_", [[], []], ["TensorList", "Scalar"]) is None
    assert _work("triton_poi_fused_add_mystery_0", [[8]], [F32]) is None
    assert has_model("aten::_foreach_add_") and not has_model("aten::cat")


@pytest.mark.parametrize(
    ("kind", "sent", "added"),
    [
        ("all_reduce", 2 * 100 * 7 / 8, 100 * 7 / 8),
        ("all_gather", 100 * 7 / 8, 0),
        ("reduce_scatter", 100 * 7 / 8, 100 * 7 / 8),
        ("broadcast", 100, 0),
    ],
)
def test_a_rank_of_a_collective_sends_and_adds_its_part(kind, sent, added):
    work = collective_work(kind, 100, 100, BF16, 8)
    assert (work.num_bytes, work.flops) == (2 * sent, added)
    assert collective_work(kind, 100, 100, "", 8) is None and collective_work(kind, -1, -1, BF16, 8) is None
    assert collective_work("", 100, 100, BF16, 8) is None
