"""One GPU, as the host sees it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

PROMISE = "LAB_NUM_GPUS"  # in a step's environment: how many GPUs its engine gave it
GIVEN = "LAB_GPU_UUIDS"  # in a container's: which, because no mask names them there
STEP = "LAB_STEP"  # run and step: by it a process of a step is known among those of a GPU
ATTEMPT, IMAGE_ID = "LAB_ATTEMPT", "LAB_IMAGE_ID"  # which try of a step this is, and in which image
REPORTED = "LAB_REPORTED"  # names of further variables that the step reports
HOST = "LAB_HOST"  # in a container's: the machine, because the container has a name of its own


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU as the host sees it. A value that the driver does not report is None."""

    vendor: str  # "nvidia" | "amd"
    index: int
    uuid: str
    name: str = ""
    driver: str | None = None
    mem_bytes: int | None = None
    power_limit_w: float | None = None
    max_sm_mhz: float | None = None
    max_mem_mhz: float | None = None
    arch: str | None = None  # "sm_90", "gfx942"
    render_node: str | None = None  # AMD: the device node that gives access to this GPU alone
    parent: str | None = None  # of a MIG instance: the UUID of the GPU that it is part of
    instance: int | None = None  # of a MIG instance: its number on that GPU, so that `0:1` names it
    cdi: str | None = None  # its name in this host's CDI specifications, such as nvidia.com/gpu=0

    @property
    def number(self) -> str:
        """How a person names it: `0`, or `0:1` for a MIG instance."""
        return str(self.index) if self.instance is None else f"{self.index}:{self.instance}"


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process that uses a GPU; pid 0: memory in use without a process that can be seen from here."""

    gpu: str  # its UUID
    pid: int
    name: str = ""
    mem_bytes: int | None = None
    sm_percent: int | None = None


def promised_gpus(env: Mapping[str, str]) -> int:
    """How many GPUs the engine of this process gave it; 0 where no engine said so."""
    text = env.get(PROMISE, "")
    return int(text) if text.isdecimal() else 0
