"""Exact overloads and arguments from a chrome or an execution trace; nothing invented without its label."""

from __future__ import annotations

import pytest

from lab.rooms.kernels.replay.args import Launch, RawArgs
from lab.rooms.kernels.replay.arguments.execution_trace import from_node
from lab.rooms.kernels.replay.arguments.from_trace import dtype_of_launches, from_trace
from lab.rooms.kernels.replay.arguments.schemas import Unresolved, literal_of, parse_schema
from tests.rooms.kernels.replay.recordings import MUL, mul_node, tensor


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


SCALAR_MUL = "aten::mul.Scalar(Tensor self, Scalar other) -> Tensor"


SUM = (
    "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
)


EMBEDDING = (
    "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, "
    "bool sparse=False) -> Tensor"
)


INDEX = "aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor"


COPY = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"


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


def test_a_schema_is_taken_apart_with_defaults_and_keyword_only_arguments():
    found = parse_schema(SUM)
    assert (found.name, found.overload) == ("aten::sum", "dim_IntList")
    assert [(p.name, p.type, p.default, p.kwarg_only) for p in found.params] == [
        ("self", "Tensor", None, False),
        ("dim", "int[]?", None, False),
        ("keepdim", "bool", "False", False),
        ("dtype", "ScalarType?", "None", True),
    ]


def test_alias_marks_and_symbolic_integers_do_not_change_a_type():
    assert [p.type for p in parse_schema(COPY).params] == ["Tensor", "Tensor", "bool"]
    assert parse_schema(EMBEDDING).params[2].type == "int"
    assert parse_schema("aten::f(Tensor(a!)[] x, SymInt[2] y) -> ()").params[0].type == "Tensor[]"


def test_text_that_is_not_a_schema_is_refused():
    with pytest.raises(Unresolved, match="not a schema"):
        parse_schema("hello world")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("None", None),
        ("[1, 2]", [1, 2]),
        ("1.", 1.0),
        ("inf", "inf"),
        ("Mean", 1),
        ("tanh", "tanh"),
        ("True", True),
    ],
)
def test_literals_are_read_as_schemas_and_traces_write_them(text, value):
    assert literal_of(text) == value
