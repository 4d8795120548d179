"""One step profiles; it starts with the engine's own interpreter and names the files it must leave."""

from __future__ import annotations

import json

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.core.plan import Site
from lab.errors import UsageError
from lab.rooms.kernels.config import KernelsConfig
from lab.rooms.kernels.plan import CONFIG, plan

GPU = Gpu(vendor="nvidia", index=0, uuid="GPU-0", name="H200", mem_bytes=139 * 2**30)


def test_one_gpu_needs_no_torchrun():
    made = plan(KernelsConfig(model="bloom-560m"), Site(vendor="nvidia", gpus=(GPU,)))
    (step,) = made.steps
    assert step.argv[:3] == ("python", "-m", "lab.rooms.kernels.workload.main") and step.num_gpus == 1
    assert step.argv[-2:] == ("--device", "cuda")


def test_tensor_parallel_ranks_are_started_by_the_same_python_and_each_leaves_its_files():
    site = Site(vendor="nvidia", gpus=(GPU, msgspec.structs.replace(GPU, index=1, uuid="GPU-1")))
    (step,) = plan(KernelsConfig(model="vicuna-7b", tp=2), site).steps
    assert step.argv[:4] == ("python", "-m", "torch.distributed.run", "--nproc_per_node=2")
    assert step.num_gpus == 2 and len(step.expects) == 6
    assert any("rank1" in pattern for pattern in step.expects)


def test_without_gpu_the_plan_says_that_there_are_no_kernels():
    made = plan(KernelsConfig(), Site(vendor="none"))
    assert made.steps[0].num_gpus == 0 and "cpu" in made.steps[0].argv
    assert any("no kernels" in note for note in made.notes)


def test_on_a_login_node_the_plan_says_how_to_ask_slurm_for_gpus():
    made = plan(KernelsConfig(model="tiny-llama", tp=2), Site(vendor="none"), env={"HAS_SRUN": "1"})
    assert any(
        "srun --gres=gpu:2 --pty bash" in note and "#SBATCH --gres=gpu:2" in note for note in made.notes
    )


def test_the_workload_reads_back_the_very_configuration():
    config = KernelsConfig(model="tiny-llama", max_new_tokens=5, prompt='Hi, "you"', seed=3)
    text = plan(config, Site(vendor="none")).inputs[CONFIG]
    assert (
        msgspec.json.decode(text, type=KernelsConfig) == config and json.loads(text)["prompt"] == 'Hi, "you"'
    )


def test_a_plan_that_cannot_work_is_no_plan():
    with pytest.raises(UsageError):
        plan(KernelsConfig(model="bloom-560m", tp=3), Site(vendor="nvidia", gpus=(GPU,) * 3))
