"""Values and numbers as the schema wants them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.kernels.replay.args import Arg  # noqa: E402
from lab.rooms.kernels.replay.arguments.schemas import Unresolved  # noqa: E402
from lab.rooms.kernels.workload.replay.build import bind, first_call, overload_of, schemas_of  # noqa: E402  # noqa: E402
from tests.rooms.kernels.workload.replay.made import CPU, spec  # noqa: E402


def test_a_number_stays_a_number_where_the_op_takes_one_and_becomes_a_tensor_where_not():
    number = spec("float64", shape=(), stride=(), number=True)
    left = Arg(name="self", type="Tensor", tensor=spec())
    mul, _ = first_call(
        bind("aten::mul", "Tensor", [left, Arg(name="other", type="Tensor", tensor=number)], CPU)
    )
    assert not isinstance(mul.args[1], torch.Tensor)
    ne, _ = first_call(
        bind("aten::ne", "Tensor", [left, Arg(name="other", type="Tensor", tensor=number)], CPU)
    )
    assert isinstance(ne.args[1], torch.Tensor) and ne.args[1].dim() == 0


def test_values_are_turned_into_what_the_schema_wants():
    args = [
        Arg(name="size", type="int[]", value=[2]),
        Arg(name="dtype", type="ScalarType?", value=5, kwarg_only=True),
        Arg(name="layout", type="Layout?", kwarg_only=True),
        Arg(name="device", type="Device?", value="cuda:0", kwarg_only=True),
        Arg(name="pin_memory", type="bool?", value=True, kwarg_only=True),
    ]
    _, result = first_call(bind("aten::zeros", "", args, CPU))
    assert result.dtype is torch.float16 and result.device == CPU
    clamp = [
        Arg(name="self", type="Tensor", tensor=spec()),
        Arg(name="min", type="Scalar?", value="-inf"),
        Arg(name="max", type="Scalar?", value=0),
    ]
    assert float(first_call(bind("aten::clamp", "", clamp, CPU))[1].max()) <= 0


def test_an_overload_this_torch_lacks_is_never_replaced():
    with pytest.raises(Unresolved):
        overload_of("aten::mul", "NoSuchOverload")
    assert {schema.overload for schema in schemas_of("aten::mul")} >= {"Tensor", "Scalar"}
