"""Schemas and literals are taken apart."""

from __future__ import annotations

import pytest

from lab.rooms.kernels.replay.arguments.schemas import Unresolved, literal_of, parse_schema
from tests.rooms.kernels.replay.arguments.schemas import COPY, EMBEDDING, SUM


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
