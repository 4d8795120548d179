"""Exact overloads and arguments from a chrome trace, and nothing invented without its label."""

from __future__ import annotations

import pytest

from lab.rooms.kernels.replay.args import Launch, RawArgs
from lab.rooms.kernels.replay.arguments.from_trace import dtype_of_launches, from_trace
from lab.rooms.kernels.replay.arguments.schemas import Unresolved, parse_schema
from tests.rooms.kernels.replay.arguments.schemas import COPY, EMBEDDING, INDEX, SCALAR_MUL
from tests.rooms.kernels.replay.recordings import MUL


def raw(types, dims, concrete, strides=()):
    return RawArgs(tuple(types), tuple(dims), tuple(strides), tuple(concrete))


def test_the_overload_is_chosen_by_what_was_recorded():
    schemas = [parse_schema(SCALAR_MUL), parse_schema(MUL)]
    both, _ = from_trace(raw(["float", "float"], [[2], [2]], ["", ""]), schemas, ())
    number, args = from_trace(raw(["float", "Scalar"], [[2], []], ["", "0.5"]), schemas, ())
    assert (both.overload, number.overload) == ("Tensor", "Scalar")
    assert args[1].value == 0.5 and args[1].src == "recorded"


def test_a_literal_tells_bool_int_and_float_apart():
    schemas = [
        parse_schema(f"aten::f.{name}(Tensor self, {name} x) -> Tensor") for name in ("bool", "int", "float")
    ]
    for literal, overload in (("True", "bool"), ("3", "int"), ("3.", "float"), ("-inf", "float")):
        assert (
            from_trace(raw(["float", "Scalar"], [[2], []], ["", literal]), schemas, ())[0].overload
            == overload
        )


def test_a_wrong_number_of_arguments_fits_nothing():
    with pytest.raises(Unresolved, match="takes 1"):
        from_trace(raw(["float"], [[2]], [""]), [parse_schema(MUL)], ())


def test_a_lost_list_of_tensors_is_unresolved_and_never_guessed():
    with pytest.raises(Unresolved, match="does not hold"):
        from_trace(raw(["bool", ""], [[1, 16], []], ["", ""]), [parse_schema(INDEX)], ())


def test_indices_are_bounded_by_the_table_they_index():
    args = from_trace(
        raw(
            ["c10::Half", "long int", "Scalar", "Scalar", "Scalar"],
            [[50, 8], [1, 4], [], [], []],
            ["", "", "-1", "False", "False"],
        ),
        [parse_schema(EMBEDDING)],
        (),
    )[1]
    assert (args[1].tensor.low, args[1].tensor.high, args[1].src) == (0, 49, "bounded")


def test_integers_without_a_bound_are_labelled_synthetic():
    args = from_trace(raw(["long int", "long int"], [[4], [4]], ["", ""]), [parse_schema(MUL)], ())[1]
    assert {arg.src for arg in args} == {"synthetic"}


def test_the_name_of_a_copy_tells_its_two_devices():
    launch = Launch("Memcpy HtoD (Pinned -> Device)", "memcpy", bytes=32)
    args = from_trace(
        raw(["float", "float", "Scalar"], [[8], [8], []], ["", "", "False"]), [parse_schema(COPY)], [launch]
    )[1]
    assert (args[0].tensor.device, args[1].tensor.device, args[1].tensor.pinned) == ("cuda", "cpu", True)


def test_kernel_names_tell_the_type_of_a_list_of_tensors():
    assert dtype_of_launches([Launch("CatArrayBatchedCopy<OpaqueType<2u>, 3>")]) == "float16"
    assert dtype_of_launches([Launch("add<c10::BFloat16>")]) == "bfloat16"
    assert dtype_of_launches([]) == "float32"
