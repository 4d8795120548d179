"""What a person asks Slurm for. Apart from the engine, so that plans need not load it."""

from __future__ import annotations

from typing import Literal

import msgspec

Container = Literal["none", "docker", "pyxis", "apptainer"]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask Slurm for, in sbatch's words; None leaves it to the site."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_min: int | None = None
    cpus_per_task: int | None = None
    mem: str | None = None
    gres: str | None = None  # instead of gpu:N
    extra: tuple[str, ...] = ()  # further sbatch options, KEY=VALUE
    container: Container = "none"
