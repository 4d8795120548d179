"""Exact overloads and arguments from a node of an execution trace."""

from __future__ import annotations

import pytest

from lab.rooms.kernels.replay.arguments.execution_trace import from_node
from lab.rooms.kernels.replay.arguments.schemas import Unresolved
from tests.rooms.kernels.replay.arguments.schemas import COPY, INDEX
from tests.rooms.kernels.replay.recordings import MUL, mul_node, tensor


def test_an_execution_trace_gives_the_overload_strides_and_alignment():
    nodes = mul_node()
    nodes["inputs"]["values"][1] = [20, 2, 3, 8, 2, "cuda:0"]
    schema, args = from_node(MUL, nodes["inputs"])
    assert schema.overload == "Tensor"
    assert args[0].tensor.stride == (4, 1)
    assert args[1].tensor.align_bytes == 6
    assert {arg.src for arg in args} == {"recorded"}


def test_a_wrapped_number_goes_in_as_a_number_and_is_labelled_synthetic():
    big, half = tensor(1, 8)
    small, double = tensor(2, 1, "double", 8, device="cpu")
    args = from_node(
        MUL, {"values": [big, small], "types": [half, double], "shapes": [[8], []], "strides": [[1], []]}
    )[1]
    assert args[1].tensor.number and args[1].src == "synthetic"


def test_a_copy_keeps_its_small_cpu_tensor():
    here, kind = tensor(1, 1, "long int", 8)
    there, _ = tensor(2, 1, "long int", 8, device="cpu")
    args = from_node(
        COPY,
        {
            "values": [here, there, False],
            "types": [kind, kind, "Bool"],
            "shapes": [[], [], []],
            "strides": [[], [], []],
        },
    )[1]
    assert not args[1].tensor.number and args[1].tensor.device == "cpu"


def test_a_list_with_holes_keeps_its_holes():
    first, kind = tensor(1, 8, "bool", 1)
    index, long = tensor(2, 4, "long int", 8)
    args = from_node(
        INDEX,
        {
            "values": [first, [[97, 0, 0, 0, 0, ""], index]],
            "types": [kind, f"GenericList[Tensor(nullptr (uninitialized)),{long}]"],
            "shapes": [[2, 4], [[], [4]]],
            "strides": [[4, 1], [[], [1]]],
        },
    )[1]
    assert args[1].tensors[0] is None
    assert (args[1].tensors[1].high, args[1].src) == (3, "bounded")


def test_a_node_that_lost_arguments_is_unresolved():
    with pytest.raises(Unresolved, match="holds 1 argument,"):
        from_node(MUL, {"values": [1], "types": ["Int"], "shapes": [[]], "strides": [[]]})
