"""Errors of torch, CUDA and NCCL come with their fix."""

from __future__ import annotations

import pytest

from lab.errors import LabError
from lab.images.targets import ROOT
from lab.rooms.kernels.cures import FOR_OLD_TORCH, explain, explained


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        (
            "The current PyTorch install supports CUDA capabilities sm_70. "
            "CUDA capability sm_61 is not compatible with the current PyTorch installation",
            "--image pascal",
        ),
        ("CUDA error: no kernel image is available for execution on the device", "--image pascal"),
        ("ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "srun --gres=gpu:1"),
        (
            "CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server",
            "CUDA_MPS_PIPE_DIRECTORY",
        ),
        ("Found no NVIDIA driver on your system.", "srun"),
        ("Torch not compiled with CUDA enabled", "--image cuda"),
        ("Disabling PyTorch because PyTorch >= 2.1 is required but found 1.12.1", FOR_OLD_TORCH),
        ("CUDA out of memory. Tried to allocate 20.00 MiB", "--tp 2"),
        ("NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error", "NCCL_DEBUG"),
    ],
)
def test_errors_of_cuda_and_nccl_come_with_their_cure(message, cure):
    found = explained(RuntimeError(message), {"HAS_SRUN": "1"})
    assert isinstance(found, LabError) and cure in found.fix and message.splitlines()[0] in found.problem


def test_an_error_that_is_not_known_is_left_alone():
    assert explain("shape '[1, 5]' is invalid for input of size 240", {}) is None


def test_the_advice_for_torch_1_12_is_what_the_image_has():
    lock = (ROOT / "images/pascal/requirements.lock").read_text()
    assert f"\n{FOR_OLD_TORCH} " in lock and "\ntorch==1.12.1" in lock
