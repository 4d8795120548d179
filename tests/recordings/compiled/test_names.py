"""The operators in a kernel's name, cut where an operator ends."""

import pytest

from lab.recordings.compiled import fused_ops, is_inductor, name_of_category


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1", "_unsafe_view add mean mul pow rsqrt"),
        ("triton_poi_fused__to_copy_1", "_to_copy"),
        ("triton_per_fused__softmax__to_copy_native_layer_norm_12", "_softmax _to_copy native_layer_norm"),
        ("triton_poi_fused_0", ""),
        (
            "triton_poi_fused_add_masked_fill_native_layer_norm_backward_3",
            "add masked_fill native_layer_norm_backward",
        ),
        ("triton_tem_fused_mm_7", "mm"),
        ("attn_fwd", ""),
    ],
)
def test_names_are_cut_at_operators(name, ops):
    assert " ".join(fused_ops(name)) == ops


def test_operators_of_the_recording_are_known_too():
    name = "triton_poi_fused_constant_pad_nd_moe_forward_0"
    assert fused_ops(name) == ("constant_pad_nd", "moe", "forward")
    assert fused_ops(name, ["moe_forward"]) == ("constant_pad_nd", "moe_forward")


def test_only_inductors_names_are_taken_for_its_kernels():
    assert is_inductor("triton_red_fused_add_0") and name_of_category("triton_red_fused_add_0") == "reduction"
    assert not is_inductor("kernel_unified_attention_2d") and name_of_category("attn_fwd") == ""
