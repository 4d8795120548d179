"""From a GpusConfig and a site to one step per round, each on all GPUs. Pure."""

from __future__ import annotations

import msgspec

from lab.core.plan import Plan, Site
from lab.core.step import Step
from lab.rooms.trials.gpus.config import CONFIG, VISITS, WORKLOAD, GpusConfig


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
