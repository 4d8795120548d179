"""Which outputs of which operators nobody need write, by the schemas of the torch that is here."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.workload.unwritten import gives_no_values, unwritten  # noqa: E402


def left(op, *args, **kwargs):
    """What is left out of a result of tensors alone, one for each that the schema gives."""
    func = getattr(torch.ops.aten, op).default
    one = torch.zeros(())
    result = tuple(one if str(part.type) == "Tensor" else 0 for part in func._schema.returns)
    found = unwritten(func, args, kwargs, result if len(result) > 1 else result[0])
    return {number: name.removeprefix(f"{op} ") for number, name in found.items()}


SEEDS = {"philox_seed", "philox_offset", "rng_state"}


@pytest.mark.parametrize(
    "op, at",
    [
        ("_scaled_dot_product_efficient_attention", 5),
        ("_scaled_dot_product_flash_attention", 3),
        ("_scaled_dot_product_cudnn_attention", 5),
        ("_scaled_dot_product_fused_attention_overrideable", 4),
        ("_efficient_attention_forward", 8),
        ("_flash_attention_forward", 7),
        ("_cudnn_attention_forward", 9),
    ],
)
def test_seeds_of_an_attention_are_compared_where_it_draws(op, at):
    """at: which argument dropout_p is."""
    func = getattr(torch.ops.aten, op).default
    assert func._schema.arguments[at].name == "dropout_p"
    nothing, some = (left(op, *[None] * at, p) for p in (0.0, 0.1))
    assert set(nothing.values()) & SEEDS and not set(some.values()) & SEEDS
    assert set(some.values()) == set(nothing.values()) - SEEDS <= {"unused", "debug_attn_mask"}
    assert left(op, dropout_p=0.5) == some
    assert set(left(op)) == set(nothing)  # the default draws nothing, and what is not known is no all-clear
    assert 0 not in nothing and 1 not in nothing


def test_numbers_are_those_of_the_tensors_not_of_the_schema():
    """Flash attention gives two numbers, and no tensor, between its outputs."""
    func = torch.ops.aten._scaled_dot_product_flash_attention.default
    one = torch.zeros(())
    found = unwritten(func, (one, one, one), {}, (one, one, None, None, 4, 4, one, one, one))
    assert [name.split()[1] for name in found.values()] == [
        part.name for part in func._schema.returns[6:] if part.name
    ]
    assert list(found) == [2, 3, 4]


@pytest.mark.parametrize("op, at", [("_efficient_attention_forward", 4), ("_flash_attention_forward", 3)])
def test_the_logarithms_of_sequences_of_several_lengths_have_rows_that_nobody_writes(op, at):
    dense, ragged = left(op), left(op, *[None] * at, torch.tensor([0, 3, 9]))
    assert 1 not in dense and ragged[1].endswith("logsumexp")


@pytest.mark.parametrize(
    "op, numbers",
    [
        ("cudnn_batch_norm", {3}),
        ("_batch_norm_with_update", {3}),
        ("_batch_norm_with_update_functional", {3}),  # and not the running statistics after it
        ("_cudnn_rnn", {3}),
        ("miopen_rnn", {3}),
        ("mkldnn_rnn_layer", {3}),
        ("_cudnn_init_dropout_state", {0}),
        ("_embedding_bag", set()),
        ("_ctc_loss", {1}),
        ("native_batch_norm", set()),
        ("native_layer_norm", set()),
        ("_scaled_dot_product_flash_attention_for_cpu", set()),
        ("_scaled_dot_product_efficient_attention_backward", set()),
        ("_flash_attention_backward", set()),
        ("addmm", set()),
    ],
)
def test_workspaces_are_left_out_and_no_gradient_is(op, numbers):
    assert set(left(op)) == numbers


@pytest.mark.parametrize("op", ["_embedding_bag", "_embedding_bag_forward_only"])
def test_the_size_of_a_bag_that_is_none_is_left_out(op):
    assert left(op) == {} and list(left(op, include_last_offset=True)) == [2]


def test_log_alpha_of_ctc_holds_what_was_in_memory_before():
    """The one output of a CPU operator that does, seen by filling new memory with NaN."""
    scores = torch.zeros(6, 2, 4).log_softmax(-1)
    given = scores, torch.ones(2, 3, dtype=torch.long), [6, 2], [3, 1]
    torch.use_deterministic_algorithms(True)
    try:
        loss, log_alpha = torch.ops.aten._ctc_loss.default(*given)
    finally:
        torch.use_deterministic_algorithms(False)
    assert log_alpha.isnan().any() and not loss.isnan().any()
    assert unwritten(torch.ops.aten._ctc_loss.default, given, {}, (loss, log_alpha)) == {
        1: "_ctc_loss output 1"
    }


@pytest.mark.parametrize(
    "name, nothing",
    [
        ("aten.empty.memory_format", True),
        ("aten.new_empty_strided.default", True),
        ("aten.empty_like.default", True),
        ("aten::empty_strided", True),
        ("aten.resize_.default", True),
        ("aten._resize_output_.default", True),
        ("prims.empty_strided.default", True),
        ("mylib.sum_of_nonempty.default", False),
        ("mylib.empty.default", False),
        ("aten._upsample_bilinear2d_aa.default", False),
    ],
)
def test_new_memory_has_no_values_and_no_ones_operator_is_left_out_for_its_name(name, nothing):
    assert gives_no_values(name) is nothing


@pytest.mark.parametrize(
    "name, numbers",
    [
        ("aten._ctc_loss.default", {1}),
        ("aten::_ctc_loss", {1}),
        ("mylib._ctc_loss.default", set()),
        ("mylib::_ctc_loss", set()),
        ("mylib._embedding_bag.default", set()),
        ("flash_attn._flash_attn_forward.default", {3}),
        ("flash_attn_3._flash_attn_forward.default", set()),  # its fourth is another
    ],
)
def test_an_operator_of_another_library_is_compared_whatever_its_name(name, numbers):
    class Operator:
        def __str__(self):
            return name

    assert set(unwritten(Operator(), (), {"include_last_offset": True}, [torch.zeros(())] * 4)) == numbers
