"""Errors of torch, CUDA and NCCL explained: what each means, and what to do; why a GPU may be missing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from typing import NamedTuple

from lab.errors import GpuError, LabError

SRUN = "srun --gres=gpu:{gpus} --pty bash"
SBATCH = "#SBATCH --gres=gpu:{gpus}"
FOR_OLD_TORCH = "transformers==4.48.3"  # with torch 1.12, as in the image pascal


def explained(error: Exception, env: Mapping[str, str], gpus: int = 1) -> LabError | None:
    """The same error with its meaning and its fix; None for an unknown error."""
    explanation = explain(str(error), env, gpus)
    return GpuError(f"{explanation[0]}: {first_line(error)}", fix=explanation[1]) if explanation else None


def explain(message: str, env: Mapping[str, str], gpus: int = 1) -> tuple[str, str] | None:
    """(meaning, fix) of an error message of torch, CUDA or NCCL; None for an unknown one."""
    for cure in _CURES:
        if re.search(cure.pattern, message):
            return cure.meaning, cure.fix.format(no_gpu=no_gpu_cure(env, gpus))
    return None


class Cure(NamedTuple):
    pattern: str  # of the message
    meaning: str
    fix: str


# The first pattern that matches counts.
_CURES = (
    Cure(
        r"CUDA capability sm_\d+ is not compatible|compute capability \(CC\)"
        r"|no longer supports this GPU because it is too old|no kernel image is available",
        "torch has no code for this GPU",
        "--image pascal for GTX 10xx and P100, --image cuda for Ampere and newer",
    ),
    Cure(
        r"ProcessGroupNCCL is only supported with GPUs",
        "a rank sees no GPU",
        "start on a GPU node; {no_gpu}",
    ),
    Cure(
        r"MPS|\b80[5-9]\b.*(MPS|client|server)|mps (client|server)",
        "CUDA cannot connect to the multi-process service (MPS)",
        "run as the user who owns the MPS daemon, or hide it: unset CUDA_MPS_PIPE_DIRECTORY, or stop it with "
        "`echo quit | nvidia-cuda-mps-control`; containers need its pipe folder mounted and --ipc=host; "
        "under MPS energy includes other programs",
    ),
    Cure(
        r"Found no NVIDIA driver|driver version is insufficient",
        "no driver, or a driver too old for this torch",
        "{no_gpu}; otherwise update the driver, or use an image with an older CUDA",
    ),
    Cure(
        r"unsupported (display driver|toolchain)|system has unsupported display driver"
        r"|PTX was compiled with an unsupported toolchain",
        "the driver and the image's CUDA are incompatible",
        "reboot after a driver update, or use an image with an older CUDA",
    ),
    Cure(
        r"no CUDA-capable device|No CUDA GPUs are available|invalid device ordinal",
        "the GPU is hidden or missing",
        "{no_gpu}",
    ),
    Cure(
        r"Torch not compiled with CUDA enabled|doesn't have NCCL built in",
        "this torch is a CPU build",
        "use a GPU image (--image cuda or pascal), or --gpus none",
    ),
    Cure(
        r"Disabling PyTorch because PyTorch >= ",
        "transformers is too new for this torch",
        f"pip install {FOR_OLD_TORCH} 'numpy<2'",
    ),
    Cure(
        r"CUDA out of memory|HIP out of memory",
        "the model does not fit this GPU",
        "--tp 2, bloom-560m, fewer --max-new-tokens, or --8bit with torch 2.3 or newer",
    ),
    Cure(
        r"NCCL (error|failure)|ncclUnhandled|ncclSystemError|ncclInternalError",
        "NCCL could not connect the ranks",
        "set NCCL_DEBUG=INFO to see why; check that every rank sees a GPU of its own, and shared memory "
        "(--shm-size, --ipc=host)",
    ),
)


def first_line(error: BaseException) -> str:
    """The first line of an error's text; its type if it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def no_gpu_cure(env: Mapping[str, str], gpus: int) -> str:
    """What to do without a GPU, by what the environment says: a mask, a Slurm job, a login node."""
    mask = env.get("CUDA_VISIBLE_DEVICES")
    if mask is not None and (not mask.strip() or mask.strip().startswith("-1")):
        return f"CUDA_VISIBLE_DEVICES={mask!r} hides every GPU: unset it"
    if env.get("SLURM_JOB_ID"):
        return f"this Slurm job has no GPU: request {gpus} with `{SBATCH.format(gpus=gpus)}`"
    if env.get("HAS_SRUN"):
        return (
            f"this looks like a login node: `{SRUN.format(gpus=gpus)}`, or a batch script with "
            f"`{SBATCH.format(gpus=gpus)}` and `srun lab run kernels profile ...`"
        )
    return "see `lab doctor`; --gpus none runs on the CPU"


def host_env() -> dict[str, str]:
    """The variables that explain a missing GPU, and HAS_SRUN if Slurm's srun is installed."""
    names = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")
    variables = {name: os.environ[name] for name in names if name in os.environ}
    return variables | ({"HAS_SRUN": "1"} if shutil.which("srun") else {})
