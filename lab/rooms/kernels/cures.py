"""cures"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping

from lab.errors import GpuError, LabError

SRUN = "srun --gres=gpu:{gpus} --pty bash"


SBATCH = "#SBATCH --gres=gpu:{gpus}"


def explained(error: Exception, env: Mapping[str, str], gpus: int = 1) -> LabError | None:
    """The same error in lab's words with its cure; None where lab knows none."""
    found = explain(str(error), env, gpus)
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return GpuError(f"{found[0]}: {first}", fix=found[1]) if found else None


def explain(message: str, env: Mapping[str, str], gpus: int = 1) -> tuple[str, str] | None:
    """(what it means, what helps) for an error that torch, CUDA or NCCL raised; None for one that is not known."""
    for pattern, meaning, cure in _CURES:
        if re.search(pattern, message):
            return meaning, cure.format(no_gpu=no_gpu_cure(env, gpus))
    return None


# (what the text says, what it means, what helps). The first that matches counts.
_CURES: tuple[tuple[str, str, str], ...] = (
    (
        r"CUDA capability sm_\d+ is not compatible|compute capability \(CC\)|no longer supports this GPU because it is too old|no kernel image is available",
        "torch holds no code for this GPU",
        "--image pascal for GTX 10xx and P100, --image cuda for Ampere and newer",
    ),
    (
        r"ProcessGroupNCCL is only supported with GPUs",
        "a worker sees no GPU",
        "start on a GPU node; {no_gpu}",
    ),
    (
        r"MPS|\b80[5-9]\b.*(MPS|client|server)|mps (client|server)",
        "CUDA found a multi-process service (MPS) and cannot talk to it",
        "run as the user who owns the MPS daemon, or hide it: unset CUDA_MPS_PIPE_DIRECTORY, or stop it with "
        "`echo quit | nvidia-cuda-mps-control`; containers need its pipe folder mounted and --ipc=host; energy cannot be told apart under MPS",
    ),
    (
        r"Found no NVIDIA driver|driver version is insufficient",
        "no driver, or one too old for this torch",
        "{no_gpu}; else update the driver, or use an image with an older CUDA",
    ),
    (
        r"unsupported (display driver|toolchain)|system has unsupported display driver|PTX was compiled with an unsupported toolchain",
        "driver and CUDA of the image do not fit",
        "reboot after a driver update, or use an image with an older CUDA",
    ),
    (
        r"no CUDA-capable device|No CUDA GPUs are available|invalid device ordinal",
        "the GPU is hidden or not there",
        "{no_gpu}",
    ),
    (
        r"Torch not compiled with CUDA enabled|doesn't have NCCL built in",
        "this torch is a CPU build",
        "a GPU image (--image cuda or pascal), or --gpus none",
    ),
    (
        r"Disabling PyTorch because PyTorch >= ",
        "transformers is too new for this torch",
        "pip install transformers==4.46.3 'numpy<2'",
    ),
    (
        r"CUDA out of memory|HIP out of memory",
        "the model does not fit this GPU",
        "--tp 2, bloom-560m, fewer --max-new-tokens, or --8bit with torch 2.3 or newer",
    ),
    (
        r"NCCL (error|failure)|ncclUnhandled|ncclSystemError|ncclInternalError",
        "NCCL could not connect the ranks",
        "NCCL_DEBUG=INFO says why; check that every rank sees a GPU of its own, and shared memory (--shm-size, --ipc=host)",
    ),
)


def no_gpu_cure(env: Mapping[str, str], gpus: int) -> str:
    """Why there may be no GPU, by what the environment says: a mask, a login node, or neither."""
    mask = env.get("CUDA_VISIBLE_DEVICES")
    if mask is not None and not mask.strip("- 1"):
        return f"CUDA_VISIBLE_DEVICES={mask!r} hides every GPU: unset it"
    if env.get("SLURM_JOB_ID"):
        return f"this Slurm job has no GPU: ask for them with `{SBATCH.format(gpus=gpus)}`"
    if env.get("HAS_SRUN"):
        return (
            f"this looks like a login node: `{SRUN.format(gpus=gpus)}`, or a batch script with "
            f"`{SBATCH.format(gpus=gpus)}` and `srun lab run kernels profile ...`"
        )
    return "see `lab doctor`; --gpus none runs on the CPU"


def host_env() -> dict[str, str]:
    """The variables that tell why there may be no GPU, and whether Slurm's srun is here."""
    found = {
        name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID") if name in os.environ
    }
    return found | ({"HAS_SRUN": "1"} if shutil.which("srun") else {})
