"""From a config and a site to the steps of training, diagnosis and check. Pure."""

from __future__ import annotations

import importlib.util
from typing import Any

import msgspec

from lab.core.plan import Plan, Site
from lab.core.step import Step
from lab.errors import UsageError
from lab.rooms.semicrf.config import CheckConfig, DiagnoseConfig, TrainConfig

IN_CONTAINER = "/corpus"  # where the image's tool `corpus` mounts what LAB_CORPUS names
# The config of each command in the run folder.
TRAIN, DIAGNOSE, CHECK = "train.json", "diagnose.json", "check.json"


def plan_train(
    config: TrainConfig, site: Site, *, command: str = "train", skipped: tuple[str, ...] = ()
) -> Plan:
    """One step per (head, backend); `skipped` heads become rows with their reason."""
    steps = tuple(_train_step(config, site, *case) for case in cases(config))
    absent = {
        step.name: "the package torchcrf (PyPI: pytorch-crf) is not installed"
        for step in steps
        if step.labels["model"] in skipped
    }
    return Plan(
        steps=steps,
        inputs={TRAIN: _json(config)},
        skipped=absent,
        notes=_notes(config, site),
        config={"command": command, **msgspec.to_builtins(config)},
    )


def plan_diagnose(config: DiagnoseConfig, site: Site) -> Plan:
    """The matrix on the tested backend and on a plainer one, then the probes.

    `auto` is tested as users get it: which form that is, and so which is plainer, the device says.
    """
    tested = config.train.backends[0]
    if config.partition:
        return Plan(
            steps=(_diagnose_step(config, site, "partition", tested),),
            inputs={DIAGNOSE: _json(config)},
            notes=(f"kernel under test: {config.partition}", *_notes(None, site)),
            config={"command": "diagnose", "tested": config.partition, **msgspec.to_builtins(config)},
        )
    # A case has no corpus to train on: only the probes can use it.
    trained = [] if config.case else ["cells"] if tested == "naive" else ["cells", "reference"]
    parts = [*trained, "probes"]
    return Plan(
        steps=tuple(_diagnose_step(config, site, part, tested) for part in parts),
        inputs={DIAGNOSE: _json(config)},
        notes=(
            f"backend under test: {tested}",
            *_notes(None if config.case else config.train, site),
        ),
        config={"command": "diagnose", "tested": tested, **msgspec.to_builtins(config)},
    )


def plan_check(config: CheckConfig, site: Site) -> Plan:
    """One step per backend, so that a crash of one leaves the others' results."""
    return Plan(
        steps=tuple(_check_step(config, site, name) for name in resolved(config.backends)),
        inputs={CHECK: _json(config)},
        notes=_notes(None, site),
        config={"command": "check", **msgspec.to_builtins(config)},
    )


def cases(config: TrainConfig) -> list[tuple[str, str]]:
    """(head, backend) pairs; pytorch-crf has one backend, its own."""
    pairs: list[tuple[str, str]] = []
    for model in config.models:
        pairs += [(model, "own")] if model == "pytorch-crf" else [(model, name) for name in config.backends]
    if len(set(pairs)) != len(pairs):
        raise UsageError("a head and backend are named twice", fix="name each once")
    return pairs


def resolved(backends: list[str]) -> list[str]:
    """What `auto` asks for: the default backend as users get it, and torch.

    Which one is the default (CUDA C, C++, torch) only the device can say, so it is asked for by the name
    `auto`.
    """
    return ["auto", "torch"] if backends == ["auto"] else backends


def have_torchcrf() -> bool:
    return importlib.util.find_spec("torchcrf") is not None


def _train_step(config: TrainConfig, site: Site, model: str, backend: str) -> Step:
    name = f"{model}-{backend}"
    folder = f"steps/{name}"
    return Step(
        name=name,
        folder=folder,
        num_gpus=1 if site.gpus else 0,
        argv=_workload("train", TRAIN, folder, model=model, backend=backend),
        env=_threads(site),
        timeout_s=config.step_timeout_s,
        tools=_tools(config),
        expects=(f"{folder}/result.json", f"{folder}/epochs.jsonl"),
        labels={"model": model, "backend": backend},
    )


def _diagnose_step(config: DiagnoseConfig, site: Site, part: str, backend: str) -> Step:
    folder = f"steps/{part}"
    return Step(
        name=part,
        folder=folder,
        num_gpus=1 if site.gpus else 0,
        argv=_workload("diagnose", DIAGNOSE, folder, part=part, backend=backend),
        env=_threads(site),
        timeout_s=config.step_timeout_s,
        tools=_tools(config.train),
        expects=(f"{folder}/{part}.json",),
        labels={"part": part, "backend": backend},
    )


def _check_step(config: CheckConfig, site: Site, backend: str) -> Step:
    folder = f"steps/check-{backend}"
    return Step(
        name=f"check-{backend}",
        folder=folder,
        num_gpus=1 if site.gpus else 0,
        argv=_workload("check", CHECK, folder, backend=backend),
        env=_threads(site),
        timeout_s=config.step_timeout_s + config.batches,  # 0.1 to 0.4 s each on a CPU
        expects=(f"{folder}/checks.json",),
        labels={"backend": backend},
    )


def _workload(name: str, config: str, folder: str, **options: str) -> tuple[str, ...]:
    """The command that runs one of the room's workloads."""
    flags = [word for option, value in options.items() for word in (f"--{option}", value)]
    return ("python", "-m", f"lab.rooms.semicrf.workload.{name}", "--config", config, *flags, "--out", folder)


def _tools(config: TrainConfig) -> tuple[str, ...]:
    return ("corpus",) if config.data == IN_CONTAINER else ()


def _threads(site: Site) -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1"} if site.vendor == "none" else {}


def _notes(config: TrainConfig | None, site: Site) -> tuple[str, ...]:
    notes = []
    if config is not None and config.data == "synthetic":
        notes.append("synthetic corpus: it exercises the code and says nothing about speech")
    if site.vendor == "none":
        notes.append("no GPU: these numbers are from this machine's CPU")
    return tuple(notes)


def _json(config: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(config), indent=1).decode() + "\n"
