"""The settings of a comparison of GPUs, its steps (one per round and GPU), and what a visit leaves."""

from __future__ import annotations

import random
from typing import Annotated

import msgspec

from lab.core.plan import Plan, Site
from lab.core.step import Step
from lab.errors import UsageError
from lab.rooms.trials.config import plan_of

CONFIG = "gpus.json"
VISIT = "visit.json"
SLOWER = 1.05  # a GPU whose median time is more than this times the others' is named
WORKLOAD = "lab.rooms.trials.workload.one_gpu"
LIMIT_S = 300.0  # of one visit: a GPU that hangs is a row


class GpusConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`rounds` visits of every GPU, each check `repeats` times per visit."""

    rounds: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 3
    repeats: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 10
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0


class Check(msgspec.Struct, frozen=True):
    """One check of a visit: the bits of each repeat, and the times of all."""

    name: str
    bits: tuple[str, ...] = ()
    ms: tuple[float, ...] = ()
    error: str = ""


class Visit(msgspec.Struct, frozen=True):
    """One GPU, once. `error`: why it did not end.

    counters: memory errors since the board was made, empty with a reason where they were not read.
    """

    uuid: str
    round: int
    order: int
    name: str = ""
    device: str = "cuda"
    torch: str = ""
    host: str = ""
    started_utc: str = ""
    checks: tuple[Check, ...] = ()
    counters: dict[str, int] = {}
    no_counters: str = ""
    error: str = ""


def plan(config: GpusConfig, site: Site) -> Plan:
    """Round after round, every GPU once in an order of the round's own: heat falls on all alike. Pure."""
    if not site.resolved:
        raise UsageError("each GPU is visited by name, and Slurm picks them", fix="run it on the node itself")
    uuids: list[str | None] = [gpu.uuid for gpu in site.gpus]
    notes = []
    if not uuids:
        notes.append("no GPU here: the checks run on the CPU, and no GPU is tested")
    elif len(uuids) == 1:
        notes.append("one GPU: it is compared with itself over time, and with no other")
    steps = []
    for number in range(config.rounds):
        order = [*uuids] or [None]
        random.Random(f"{config.seed}:{number}").shuffle(order)
        steps += [_step(config, number, index, uuid) for index, uuid in enumerate(order)]
    return plan_of(config, CONFIG, steps, notes)


def _step(config: GpusConfig, number: int, order: int, uuid: str | None) -> Step:
    name = f"round-{number:02d}-{order:02d}"
    folder = f"steps/{name}"
    words = {"repeats": config.repeats, "seed": config.seed, "round": number, "order": order, "out": folder}
    flags = (word for key, value in words.items() for word in (f"--{key}", str(value)))
    return Step(
        name=name,
        folder=folder,
        num_gpus=0 if uuid is None else 1,
        gpu=uuid,
        argv=("python", "-m", WORKLOAD, *flags),
        timeout_s=LIMIT_S,
        expects=(f"{folder}/{VISIT}",),
        labels={"round": number, "order": order, "gpu": uuid or "cpu"},
    )
