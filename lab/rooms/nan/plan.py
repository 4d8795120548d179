"""From a NanConfig and a site to one step an experiment. A first sketch: the room's workload does not exist yet."""

from __future__ import annotations

import msgspec

from lab.core.step import Step
from lab.errors import UsageError
from lab.rooms import Plan, Site
from lab.rooms.nan.config import EXPERIMENTS, RECIPES, NanConfig


def experiments(names: tuple[str, ...]) -> tuple[str, ...]:
    """Expand recipes; each experiment once, in the order given."""
    wanted = [one for name in names for one in RECIPES.get(name, (name,))]
    unknown = sorted(set(wanted) - set(EXPERIMENTS))
    if unknown:
        raise UsageError(
            f"there is no experiment {unknown[0]!r}", fix=f"one of: {', '.join([*EXPERIMENTS, *RECIPES])}"
        )
    return tuple(dict.fromkeys(wanted))


def plan(config: NanConfig, site: Site) -> Plan:
    """One process an experiment: a patched model never meets the next one."""
    if config.sass and site.vendor != "nvidia":
        raise UsageError(
            "nixnan reads NVIDIA instructions: there is no such level on this hardware",
            fix="use --image cuda, or `nan` for the Python level",
        )
    return Plan(
        steps=tuple(_step(config, site, name) for name in config.experiments),
        config=msgspec.to_builtins(config),
    )


def _step(config: NanConfig, site: Site, name: str) -> Step:
    folder = f"steps/{name}"
    level = ("--no-hooks",) if config.sass else ()
    return Step(
        name=name, folder=folder, num_gpus=1 if site.gpus else 0, tools=("nixnan",) if config.sass else (),
        argv=("python", "-m", "lab.rooms.nan.workload", "--experiment", name, "--out", folder, "--model", config.model,
              "--prompt", config.prompt, "--max-new-tokens", str(config.max_new_tokens), "--seed", str(config.seed), *level),
        labels={"experiment": name})  # fmt: skip
