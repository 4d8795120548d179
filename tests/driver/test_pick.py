"""Which GPUs a step gets, and steps that name one."""

from __future__ import annotations

import pytest

from lab.core.gpu import Gpu
from lab.core.step import Step
from lab.driver.execute import check_gpus, pick
from lab.errors import GpuError

GPUS = [Gpu(vendor="nvidia", index=n, uuid=f"GPU-{n}") for n in range(3)]


def step(**more):
    return Step(name="one", argv=("x",), **more)


def test_a_step_gets_the_first_free_gpus_or_waits():
    assert pick(step(num_gpus=2), GPUS) == GPUS[:2] and pick(step(num_gpus=2), GPUS[:1]) is None
    assert pick(step(), []) == []


@pytest.mark.parametrize("name", ["1", "GPU-1"])
def test_a_step_that_names_a_gpu_gets_that_one_or_waits_for_it(name):
    assert pick(step(num_gpus=1, gpu=name), GPUS) == [GPUS[1]]
    assert pick(step(num_gpus=1, gpu=name), [GPUS[0], GPUS[2]]) is None


def test_a_gpu_that_was_not_picked_is_refused_before_anything_runs():
    check_gpus([step(num_gpus=1, gpu="2")], GPUS)
    with pytest.raises(GpuError, match="needs GPU 7"):
        check_gpus([step(num_gpus=1, gpu="7")], GPUS)


def test_the_place_is_part_of_what_is_measured_and_none_changes_nothing():
    plain = step(num_gpus=1)
    prints = {one.fingerprint() for one in (plain, step(num_gpus=1, gpu="0"), step(num_gpus=1, node="0"))}
    assert len(prints) == 3 and plain.fingerprint() == Step(name="two", argv=("x",), num_gpus=1).fingerprint()
