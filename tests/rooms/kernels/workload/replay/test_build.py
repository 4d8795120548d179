"""Tensors made again, over recorded storages, with values and numbers as the schema wants them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.kernels.replay.args import Arg  # noqa: E402
from lab.rooms.kernels.replay.arguments.schemas import Unresolved  # noqa: E402
from lab.rooms.kernels.replay.calls.source import read_plan  # noqa: E402
from lab.rooms.kernels.workload.replay.build import (  # noqa: E402
    bind,
    first_call,
    make,
    overload_of,
    pattern,
    schemas_of,
)
from lab.rooms.kernels.workload.replay.order import InOrder, Memory  # noqa: E402
from tests.rooms.kernels.workload.replay.made import CPU, spec  # noqa: E402

DTYPES = "float16 bfloat16 float32 float64 int64 int32 uint8 bool complex64 float8_e4m3fn"


def test_a_tensor_has_its_strides_overlap_and_alignment():
    made = make("", spec(shape=(2, 3), stride=(0, 2), align_bytes=8), CPU, 0)
    assert (made.shape, made.stride(), made.storage_offset()) == ((2, 3), (0, 2), 2)
    assert made.untyped_storage().nbytes() == 4 * (2 + 5)


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_every_dtype_can_be_filled(dtype):
    assert make("", spec(dtype, shape=(5,), stride=(1,)), CPU, 3).dtype is getattr(torch, dtype)


def test_an_empty_tensor_can_be_made():
    assert make("", spec(shape=(0,), stride=(1,)), CPU, 0).numel() == 0


def test_indices_stay_within_their_bounds():
    made = make("", spec("int64", shape=(1000,), stride=(1,), low=2, high=6), CPU, 0)
    assert (int(made.min()), int(made.max())) == (2, 6)


def test_data_are_the_same_each_time_and_spread_like_random_ones():
    table = pattern(CPU)
    assert float(table.mean().abs()) < 0.01 and 0.56 < float(table.std()) < 0.6
    assert torch.equal(make("", spec(), CPU, 1), make("", spec(), CPU, 1))
    assert not torch.equal(make("", spec(), CPU, 1), make("", spec(), CPU, 2))


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


def test_tensors_of_one_storage_share_memory_and_an_op_moves_a_storage_to_its_result():
    memory = Memory(CPU)
    a = memory.tensor((0, 0), spec(shape=(4,), stride=(1,)), 7, 0)
    b = memory.tensor((1, 0), spec(shape=(2,), stride=(1,)), 7, 2)
    a[2] = 5.0
    assert float(b[0]) == 5.0
    result = torch.full((4,), 3.0)
    memory.buffers[7] = result.untyped_storage()
    assert float(memory.tensor((2, 0), spec(shape=(4,), stride=(1,)), 7, 0)[0]) == 3.0


def test_a_storage_that_is_too_small_is_made_again_and_kept_for_the_next_pass():
    memory = Memory(CPU)
    memory.tensor((0, 0), spec(shape=(4,), stride=(1,)), 7, 0)
    big = memory.tensor((1, 0), spec(shape=(400,), stride=(1,)), 7, 0)
    del memory.buffers[7]
    assert memory.tensor((1, 0), spec(shape=(400,), stride=(1,)), 7, 0).data_ptr() == big.data_ptr()


def test_only_indices_keep_their_own_values_in_order_other_integers_flow_from_op_to_op(recording, tmp_path):
    plan = read_plan(recording / "trace.json", recording / "et.json")
    order = InOrder(plan, {}, CPU)
    table, index = (
        spec("int64", shape=(3,), stride=(1,), low=0, high=9),
        spec("int64", shape=(3,), stride=(1,), low=0, high=9, index=True),
    )
    order.memory.buffers[5] = torch.tensor([100, 200, 300]).untyped_storage()
    assert order._fetch((0, 0), table, 5, 0)().tolist() == [100, 200, 300]
    assert max(order._fetch((0, 0), index, 5, 0)().tolist()) <= 9
