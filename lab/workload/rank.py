"""The rank of this process, its device, and its process group."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

import msgspec
import torch
import torch.distributed as dist

from lab.core.gpu import promised_gpus
from lab.core.words import plural
from lab.errors import ConfigError, GpuError


class RankContext(msgspec.Struct, frozen=True):
    """The rank of this process among its peers."""

    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def from_env(cls) -> RankContext:
        """Read torchrun's variables; a single process without them."""
        try:
            return cls(
                rank=int(os.environ.get("RANK", "0")),
                local_rank=int(os.environ.get("LOCAL_RANK", "0")),
                world_size=int(os.environ.get("WORLD_SIZE", "1")),
            )
        except ValueError as error:
            raise ConfigError(f"not an integer in RANK, LOCAL_RANK or WORLD_SIZE: {error}") from error


def check_promised_gpus(env: Mapping[str, str] = os.environ) -> None:
    """Raise GpuError where torch sees fewer GPUs than the engine gave: the step would compute on the CPU."""
    promised = promised_gpus(env)
    if promised and (visible := torch.cuda.device_count()) < promised:
        raise GpuError(
            f"this step was given {plural(promised, 'GPU')}, and torch {torch.__version__} sees {visible}",
            fix="see the driver and the engine with `lab doctor`; --gpus none runs on the CPU",
        )


def choose_device(context: RankContext, backend: str = "auto") -> torch.device:
    """This rank's GPU, or the CPU: backend is nccl, gloo or auto (a GPU where there is one).

    Raises GpuError when the requested GPU does not exist.
    """
    gpus = torch.cuda.device_count()
    if backend == "gloo" or (backend == "auto" and gpus == 0):
        return torch.device("cpu")
    if gpus == 0:
        raise GpuError(
            f"distributed.backend is nccl, but torch {torch.__version__} sees no GPU",
            fix="run in an image with GPU access, or set distributed.backend=auto",
        )
    if context.local_rank >= gpus:
        raise GpuError(
            f"local rank {context.local_rank} has no GPU: torch sees {plural(gpus, 'GPU')} on this host",
            fix=f"start at most {plural(gpus, 'process')} on this host",
        )
    torch.cuda.set_device(context.local_rank)
    return torch.device("cuda", context.local_rank)


@contextlib.contextmanager
def process_group(context: RankContext, device: torch.device) -> Iterator[None]:
    """Join the other ranks and leave together; after an error do not wait for peers, which may be stuck.

    End what records the ranks inside the block: its collectives need the group.
    """
    # Its functions take the group that is there at their import as a default. A profiler imports them later,
    # and they would keep the group and gloo's threads beyond the end of the block.
    import torch.distributed.nn.functional

    backend = "nccl" if device.type == "cuda" else "gloo"
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend)
    else:
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=context.rank, world_size=context.world_size)
    yield
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    dist.destroy_process_group()
