"""What a trace records of an op's arguments, in one line each."""

from __future__ import annotations

import json

import pytest

from lab.rooms.kernels.catalogue.trace_args import args_of, literal_arg, summary
from lab.rooms.kernels.schema import Arg


def read(dims, types, strides=None, concrete=None):
    texts = [json.dumps(value) if value is not None else "" for value in (dims, types, strides, concrete)]
    return args_of(*texts)


def test_an_addmm_of_half_is_read_with_strides_and_scalars():
    args = read(
        [[1024], [1, 1024], [1024, 1024], [], []],
        ["c10::Half"] * 3 + ["Scalar", "Scalar"],
        [[1], [1024, 1], [1, 1024], [], []],
        ["", "", "", "1", "0.5"],
    )
    assert [arg.kind for arg in args] == ["tensor", "tensor", "tensor", "int", "float"]
    assert args[2].stride == [1, 1024] and args[4].value == 0.5 and args[0].dtype == "float16"
    assert summary(args) == "f16[1024] f16[1,1024] f16[1024,1024]:1,1024 1 0.5"


def test_lists_of_tensors_have_sizes_but_no_dtypes():
    (cat, dim) = read([[[2, 3], [1, 3]], []], ["TensorList", "Scalar"], [[[3, 1], [3, 1]], []], ["", "0"])
    assert (cat.kind, [item.shape for item in cat.items]) == ("tensors", [[2, 3], [1, 3]])
    assert cat.items[0].dtype is None
    assert summary((cat, dim)) == "([2,3] [1,3]) 0"


@pytest.mark.parametrize(
    ("literal", "kind", "value"),
    [
        ("True", "bool", True),
        ("-3", "int", -3),
        ("1e-05", "float", 1e-05),
        ("inf", "float", "inf"),
        ("-inf", "float", "-inf"),
        ("[1, 2]", "ints", [1, 2]),
        ("[1.5]", "floats", [1.5]),
        ("[True, False]", "bools", [True, False]),
        ("mean", "str", "mean"),
    ],
)
def test_literals_keep_their_kind(literal, kind, value):
    assert (literal_arg(literal).kind, literal_arg(literal).value) == (kind, value)


def test_a_literal_is_never_run():
    assert literal_arg("[__import__('os').getcwd()]").kind == "other"


def test_torch_1_12_records_types_and_sizes_only():
    tensor, scalar, nothing = read([[4, 8], [], []], ["float", "Scalar", ""])
    assert (tensor.shape, tensor.stride, scalar.kind, nothing.kind) == ([4, 8], None, "other", "none")


@pytest.mark.parametrize("broken", ["", "{", "[1, ", '"text"', "null", "5"])
def test_broken_text_gives_no_arguments_and_no_error(broken):
    assert args_of(broken, broken, broken, broken) == ()


def test_sizes_that_are_not_numbers_are_unknown():
    (arg,) = read([["a"]], ["float"])
    assert arg.shape is None and summary((arg,)) == "f32[?]"


def test_a_long_summary_is_cut_and_says_so():
    assert summary([Arg(kind="tensor", dtype="float32", shape=[1] * 100)] * 3).endswith("…")
