"""From a ReplayConfig and a site to one step per run of the command. Pure."""

from __future__ import annotations

import msgspec

from lab.core.plan import Plan, Site
from lab.core.step import SOURCE, Step
from lab.rooms.trials.replay.config import CONFIG, ReplayConfig
from lab.rooms.trials.workload import REPLAY


def plan(config: ReplayConfig, site: Site) -> Plan:
    """Every run gets all GPUs that were picked, one run after the other."""
    notes = []
    if config.runs == 1 and config.against is None:
        notes.append("one run: steps are repeated inside it, and nothing says whether a second run agrees")
    if config.level == "module":
        notes.append("--level module: modules are named, operators are not")
    return Plan(
        steps=tuple(_step(config, at, len(site.gpus)) for at in range(config.runs)),
        inputs={CONFIG: msgspec.json.format(msgspec.json.encode(config), indent=1).decode() + "\n"},
        config=msgspec.to_builtins(config),
        notes=tuple(notes),
    )


def _step(config: ReplayConfig, at: int, num_gpus: int) -> Step:
    name = f"run-{at}"
    folder = f"steps/{name}"
    cwd = SOURCE if config.cwd and config.in_image else config.cwd
    return Step(
        name=name,
        source=config.cwd if config.in_image else None,
        folder=folder,
        num_gpus=num_gpus,
        argv=("python", "-m", REPLAY, "--config", CONFIG, "--out", folder, *(("--cwd", cwd) if cwd else ())),
        expects=(f"{folder}/bits_rank*.jsonl",),
        labels={"run": at},
    )
