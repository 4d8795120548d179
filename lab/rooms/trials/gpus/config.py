"""The settings of a comparison of GPUs, its steps (one per round, on all GPUs), and what a visit leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from lab.core.plan import Plan, Site
from lab.core.step import Step
from lab.errors import BadDataError

CONFIG = "gpus.json"
VISITS = "visits.json"
SLOWER = 1.05  # a GPU whose median time is more than this times the others' is named
WORKLOAD = "lab.rooms.trials.workload.gpus"
MOST_BYTES = 256 << 20
T = TypeVar("T")


class GpusConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`rounds` visits of every GPU, each check `repeats` times per visit."""

    rounds: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 3
    repeats: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 10
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit_s: Annotated[float, msgspec.Meta(gt=0)] = 300.0


class Check(msgspec.Struct, frozen=True):
    """One check of a visit: the bits of each repeat, and the times of all."""

    name: str
    bits: tuple[str, ...] = ()
    ms: tuple[float, ...] = ()
    error: str = ""


class Visit(msgspec.Struct, frozen=True):
    """One GPU, once. `error`: why it did not end."""

    uuid: str
    round: int
    order: int
    name: str = ""
    device: str = "cuda"
    torch: str = ""
    host: str = ""
    started_utc: str = ""
    checks: tuple[Check, ...] = ()
    state_before: dict[str, float | None] = msgspec.field(
        default_factory=dict, name="before"
    )  # clocks in MHz, temperature in C, throttle bits
    state_after: dict[str, float | None] = msgspec.field(default_factory=dict, name="after")
    error: str = ""


class Visits(msgspec.Struct, frozen=True):
    """All visits of one round, and the counters beside them."""

    visits: tuple[Visit, ...]
    health: dict[str, dict[str, int]] = {}
    no_health: str = ""
    xids: dict[str, tuple[str, ...]] | None = None
    no_xids: str = ""


def plan(config: GpusConfig, site: Site) -> Plan:
    notes = []
    if not site.gpus:
        notes.append("no GPU here: the checks run on the CPU, and no GPU is tested")
    elif len(site.gpus) == 1:
        notes.append("one GPU: it is compared with itself over time, and with no other")
    return Plan(
        steps=tuple(_step(config, number, len(site.gpus)) for number in range(config.rounds)),
        inputs={CONFIG: msgspec.json.format(msgspec.json.encode(config), indent=1).decode() + "\n"},
        config=msgspec.to_builtins(config),
        notes=tuple(notes),
    )


def _step(config: GpusConfig, number: int, gpus: int) -> Step:
    name = f"round-{number:02d}"
    folder = f"steps/{name}"
    return Step(
        name=name,
        folder=folder,
        num_gpus=gpus,
        argv=("python", "-m", WORKLOAD, "--config", CONFIG, "--round", str(number), "--out", folder),
        timeout_s=config.limit_s * max(1, gpus) + 60,
        expects=(f"{folder}/{VISITS}",),
        labels={"round": number},
    )


def read_gpus(path: Path) -> GpusConfig:
    """Raises BadDataError."""
    return _read(path, GpusConfig)


def read_visits(path: Path) -> Visits:
    """Raises BadDataError."""
    return _read(path, Visits)


def _read(path: Path, kind: type[T]) -> T:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadDataError("more than 256 MiB", location=path)
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise BadDataError(f"cannot be read: {error}", location=path) from error
