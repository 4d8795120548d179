"""What cannot work is refused before a model is loaded, and every error names its fix."""

from __future__ import annotations

import msgspec
import pytest

from lab.errors import GpuError, MissingError, UsageError
from lab.rooms.kernels.config import KernelsConfig
from lab.rooms.kernels.cures import FOR_OLD_TORCH, no_gpu_cure
from lab.rooms.kernels.preflight import Facts, refuse_here, refuse_plan, version

GIB = 2**30


GTX = ("GTX 1080 Ti", 11 * GIB)


H200 = Facts(
    torch="2.11.0",
    cuda="13.0",
    archs=("sm_80", "sm_90"),
    transformers="5.17.0",
    num_gpus=1,
    capabilities=((9, 0),),
    mem_bytes=(139 * GIB,),
    names=("NVIDIA H200",),
)


def refused(error, config, **where):
    with pytest.raises(error) as caught:
        refuse_plan(config, **{"vendor": "nvidia", "gpus": [], **where})
    assert caught.value.fix, "every refusal says what to do"
    return caught.value


def refused_here(error, facts, config=None, wants_gpu=True):
    with pytest.raises(error) as caught:
        refuse_here(config or KernelsConfig(model="bloom-560m"), facts, wants_gpu=wants_gpu)
    assert caught.value.fix, "every refusal says what to do"
    return caught.value


def test_vicuna_in_float16_does_not_fit_11_gb_and_two_ranks_are_the_cure():
    error = refused(GpuError, KernelsConfig(model="vicuna-7b"), gpus=[GTX])
    assert "12.6 GiB" in error.problem and "--tp 2" in error.fix and "bloom-560m" in error.fix
    refuse_plan(KernelsConfig(model="vicuna-7b", tp=2), vendor="nvidia", gpus=[GTX, GTX])
    refuse_plan(KernelsConfig(model="bloom-560m"), vendor="nvidia", gpus=[GTX])


def test_torch_1_12_has_no_tensor_parallel_no_8_bit_and_no_float16_on_a_cpu():
    old = Facts(torch="1.12.1+cu102", transformers="4.46.3", has_dtensor=False)
    for config, said in (
        (KernelsConfig(model="bloom-560m", tp=2), "DTensor"),
        (KernelsConfig(eight_bit=True), "8-bit needs torch 2.3"),
        (KernelsConfig(dtype="float16"), "float16"),
    ):
        assert said in refused_here(UsageError, old, config, wants_gpu=False).problem


def test_more_ranks_than_gpus_and_ranks_that_do_not_divide_the_heads_are_errors():
    refused(GpuError, KernelsConfig(model="bloom-560m", tp=4), gpus=[GTX])
    assert (
        "16 attention heads"
        in refused(UsageError, KernelsConfig(model="bloom-560m", tp=3), gpus=[GTX] * 3).problem
    )


def test_a_host_without_memory_for_all_ranks_is_named_before_anything_loads():
    small = msgspec.structs.replace(H200, host_mem_bytes=40 * GIB)
    error = refused_here(UsageError, small, KernelsConfig(model="vicuna-7b", tp=2), wants_gpu=False)
    assert "57.7 GiB of host memory, 40.0 GiB" in error.problem
    refuse_here(KernelsConfig(model="vicuna-7b"), small, wants_gpu=True)  # loads on the GPU
    refuse_here(KernelsConfig(model="vicuna-7b"), small, wants_gpu=False)


@pytest.mark.parametrize(
    ("release", "works"), [("4.48.3", True), ("4.30.2", True), ("4.51.0", False), ("5.23.0", False)]
)
def test_torch_1_12_takes_only_transformers_that_still_know_it(release, works):
    facts = Facts(torch="1.12.1+cu102", transformers=release)
    if works:
        refuse_here(KernelsConfig(), facts, wants_gpu=False)
    else:
        assert FOR_OLD_TORCH in refused_here(MissingError, facts, wants_gpu=False).fix


def test_a_gpu_without_code_in_torch_is_referred_to_its_image():
    def facts(capability, archs, torch="2.13.0"):
        return Facts(
            torch=torch,
            cuda="13.0",
            archs=archs,
            transformers="5.0.0",
            num_gpus=1,
            capabilities=(capability,),
            mem_bytes=(11 * GIB,),
            names=("some GPU",),
        )

    assert "--image pascal" in refused_here(GpuError, facts((6, 1), ("sm_75", "sm_80", "sm_90"))).fix
    assert "--image cuda" in refused_here(GpuError, facts((9, 0), ("sm_60", "sm_70"))).fix
    config = KernelsConfig(model="bloom-560m")
    refuse_here(
        config, facts((6, 1), ("sm_60",)), wants_gpu=True
    )  # binary code runs from its minor version on
    refuse_here(config, facts((9, 0), ("sm_60", "compute_70")), wants_gpu=True)  # and PTX runs upwards


def test_no_gpu_is_explained_by_what_the_environment_says():
    login = Facts(torch="2.11.0", cuda="13.0", transformers="5.0.0", env={"HAS_SRUN": "1"})
    assert "srun --gres=gpu:2" in refused_here(GpuError, login, KernelsConfig(model="bloom-560m", tp=2)).fix
    assert "#SBATCH --gres=gpu:1" in no_gpu_cure({"SLURM_JOB_ID": "7", "HAS_SRUN": "1"}, 1)
    assert "hides every GPU" in no_gpu_cure({"CUDA_VISIBLE_DEVICES": ""}, 1)
    assert "hides every GPU" in no_gpu_cure({"CUDA_VISIBLE_DEVICES": "-1", "HAS_SRUN": "1"}, 1)
    assert "hides" not in no_gpu_cure({"CUDA_VISIBLE_DEVICES": "0,1"}, 1)
    assert "hides" not in no_gpu_cure({"CUDA_VISIBLE_DEVICES": "1"}, 1)
    assert "without CUDA" in refused_here(GpuError, Facts(torch="2.13.0+cpu", transformers="5.0.0")).problem


def test_8_bit_asks_for_bitsandbytes_without_letting_it_replace_torch():
    config = KernelsConfig(model="bloom-560m", eight_bit=True)
    assert "torch==2.11.0" in refused_here(MissingError, H200, config).fix
    assert (
        "sharded"
        in refused(
            UsageError, KernelsConfig(model="vicuna-7b", eight_bit=True, tp=2), gpus=[GTX, GTX]
        ).problem
    )
    refused_here(UsageError, Facts(torch="2.1.0", transformers="4.40.0"), config, wants_gpu=False)


def test_versions_compare_as_numbers():
    assert (
        version("2.13.0+cpu") == (2, 13, 0) and version("1.12.1+cu102") < (2, 1) and version("nightly") == ()
    )
