"""The flags of `lab run` as values. A room's own are in its config."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

Container = Literal["none", "docker", "pyxis", "apptainer"]
HostLab = Literal["auto", "mount", "refuse"]


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask Slurm for; the site decides what is not asked for."""

    time_min: int | None = None
    extra: tuple[str, ...] = ()  # options of sbatch: KEY=VALUE, or KEY alone for a flag
    container: Container = "none"
    experimental: bool = False


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `lab run` itself; the room's own are in its config."""

    image: str | None = None
    images: tuple[str, ...] = ()  # further images, which steps of this run name
    engine: str | None = None
    gpus: str = "all"
    jobs: int = 1
    dry_run: bool = False
    json: bool = False
    output_dir: Path | None = None
    skip_existing: bool = False
    timeout_s: float | None = None
    stall_timeout_s: float | None = None
    host_lab: HostLab = "auto"  # if the image holds another; auto: mount a checkout, refuse an installed one
    analysis: Literal["auto", "host", "none"] = "auto"  # auto: in the cpu image where steps ran in containers
    quiet: bool = False
    env: tuple[tuple[str, str], ...] = ()  # of --env: for every step
    mounts: tuple[str, ...] = ()  # of --mount: SRC:DST or SRC:DST:ro, with absolute paths
    wait: bool = True  # for GPUs that another process holds
    slurm: SlurmOptions | None = None  # with --engine slurm
    vendor: str | None = None  # of the GPUs, where no image says it
    detach: bool = False  # return at once; the run goes on without this process
