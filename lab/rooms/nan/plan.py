"""From a NanConfig and a site to one step per experiment. Pure: nothing is looked at."""

from __future__ import annotations

import msgspec

from lab.core.plan import Plan, Site
from lab.core.step import Step
from lab.core.words import plural
from lab.errors import UsageError
from lab.hub import ModelNeed
from lab.rooms.nan.config import (
    AGAIN,
    CONFIG,
    EXPERIMENTS,
    RECIPES,
    RESULT,
    TRAIN,
    NanConfig,
    from_hub,
    label,
)


def experiments(names: tuple[str, ...]) -> tuple[str, ...]:
    """Expand recipes: each experiment once, in the order given, the baseline first."""
    wanted = [experiment for name in names for experiment in RECIPES.get(name, (name,))]
    unknown = sorted(set(wanted) - {*EXPERIMENTS, AGAIN})
    if unknown:
        raise UsageError(
            f"no experiment {unknown[0]!r}", fix=f"use one of: {', '.join([*EXPERIMENTS, *RECIPES])}"
        )
    return tuple(sorted(dict.fromkeys(wanted), key=lambda name: name != "baseline"))


def plan(config: NanConfig, site: Site) -> Plan:
    """One process per experiment, so that a changed model never meets the next one."""
    if config.sass and site.vendor != "nvidia":
        raise UsageError(
            "nixnan needs an NVIDIA GPU",
            fix="use --image cuda, or `lab run nan` for the Python level",
        )
    if config.sass and config.device == "cpu":
        raise UsageError("nixnan needs a GPU, but --device is cpu", fix="drop --device cpu")
    if config.train is not None:
        return _training(config, site)
    wanted = _with_repeat(config)
    return Plan(
        steps=tuple(_step(config, site, name) for name in wanted),
        inputs={CONFIG: msgspec.json.format(msgspec.json.encode(config), indent=1).decode() + "\n"},
        config=msgspec.to_builtins(config),
        notes=_notes(config, wanted),
        models=(ModelNeed(model=config.model),) if from_hub(config) else (),
    )


def _training(config: NanConfig, site: Site) -> Plan:
    """One step: the job under the guard. A job that leaves no record has not been seen, and has failed."""
    folder, on_gpu = f"steps/{TRAIN}", bool(site.gpus) and config.device != "cpu"
    step = Step(
        name=TRAIN,
        folder=folder,
        num_gpus=len(site.gpus) if on_gpu else 0,
        argv=("python", "-m", "lab.rooms.nan.workload.train", "--config", CONFIG, "--out", folder),
        timeout_s=config.step_timeout_s,
        expects=(f"{folder}/process_*.json",),
        labels={"experiment": TRAIN, "label": TRAIN},
    )
    shown = ("train", "device", "step_timeout_s")
    return Plan(
        steps=(step,),
        inputs={CONFIG: msgspec.json.format(msgspec.json.encode(config), indent=1).decode() + "\n"},
        config={name: value for name, value in msgspec.to_builtins(config).items() if name in shown},
        notes=(),
    )


def _with_repeat(config: NanConfig) -> tuple[str, ...]:
    """Add the baseline's repeat, because nixnan's lines differ from run to run."""
    wanted = config.experiments
    if config.sass and len(wanted) > 1 and "baseline" in wanted and AGAIN not in wanted:
        return (wanted[0], AGAIN, *wanted[1:])
    return wanted


def _step(config: NanConfig, site: Site, name: str) -> Step:
    folder = f"steps/{name}"
    python, config_file, out = ("python", "-m"), ("--config", CONFIG), ("--out", folder)
    workload = (*python, "lab.rooms.nan.workload", *config_file, "--experiment", name, *out)
    runner = (*python, "lab.rooms.nan.nixnan.running.runner", *config_file, *out, "--")
    on_gpu = bool(site.gpus) and config.device != "cpu"
    return Step(
        name=name,
        folder=folder,
        num_gpus=1 if on_gpu else 0,
        tools=("nixnan",) if config.sass else (),
        argv=(*runner, *workload, "--no-hooks") if config.sass else workload,
        env={} if on_gpu else {"OMP_NUM_THREADS": "2"},
        timeout_s=config.step_timeout_s,
        expects=(f"{folder}/{RESULT}",),
        labels={"experiment": name, "label": label(config, name)},
    )


def _notes(config: NanConfig, wanted: tuple[str, ...]) -> tuple[str, ...]:
    notes = []
    if "baseline" not in wanted:
        notes.append("no baseline among the experiments: there is nothing to compare with")
    if config.sass and config.nixnan.inventory:
        notes.append("an inventory lists kernels and checks none of them: it finds no NaN and clears nothing")
    elif config.sass and not config.nixnan.only_kernels:
        passes = f"{len(wanted)} x {config.max_new_tokens}"
        notes.append(
            f"every instruction of every kernel is checked, for {passes} tokens: 4 tokens of `tiny` took "
            "68 s on an H200, a 7B model takes hours. --inventory lists the kernels in one quick pass; "
            "--only-kernel then checks the few that matter"
        )
    if config.sass and config.nixnan.only_kernels:
        names = plural(len(config.nixnan.only_kernels), "kernel")
        notes.append(f"only {names} will be looked at: what is born in any other is not seen")
    if config.sass and config.nixnan.not_kernels:
        names = plural(len(config.nixnan.not_kernels), "kernel")
        notes.append(f"{names} will be left alone: what is born there is not seen")
    if config.sass and config.nixnan.sampling:
        notes.append(f"SAMPLING={config.nixnan.sampling} leaves launches out: births in them are not seen")
    return tuple(notes)
