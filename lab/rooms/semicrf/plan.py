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


def plan_train(
    config: TrainConfig, site: Site, *, command: str = "train", skipped: tuple[str, ...] = ()
) -> Plan:
    """One step per (head, backend); `skipped` heads become rows with their reason."""
    steps = tuple(
        _step("train", f"{model}-{name}", "result", config, site, {"model": model, "backend": name})
        for model, name in cases(config)
    )
    absent = {
        step.name: "the package torchcrf (PyPI: pytorch-crf) is not installed"
        for step in steps
        if step.labels["model"] in skipped
    }
    return Plan(
        steps=steps,
        inputs={"train.json": _json(config)},
        skipped=absent,
        notes=_notes(config, site),
        config={"command": command, **msgspec.to_builtins(config)},
    )


def plan_diagnose(config: DiagnoseConfig, site: Site) -> Plan:
    """The matrix on the tested backend and on a plainer one, then the probes; or the user's own kernel.

    `auto` is tested as users get it: which form that is, and so which is plainer, the device says.
    """
    tested = config.train.backends[0]
    # A case has no corpus to train on: only the probes can use it.
    trained = [] if config.case else ["cells"] if tested == "naive" else ["cells", "reference"]
    parts = ["partition"] if config.partition else [*trained, "probes"]
    corpus = None if config.case or config.partition else config.train
    word = f"kernel under test: {config.partition}" if config.partition else f"backend under test: {tested}"
    return Plan(
        steps=tuple(
            _step("diagnose", part, part, config, site, {"part": part, "backend": tested}) for part in parts
        ),
        inputs={"diagnose.json": _json(config)},
        notes=(word, *_notes(corpus, site)),
        config={"command": "diagnose", "tested": config.partition or tested, **msgspec.to_builtins(config)},
    )


def plan_check(config: CheckConfig, site: Site) -> Plan:
    """One step per backend, so that a crash of one leaves the others' results.

    Which one is the default (CUDA C, C++, torch) only the device can say, so it is asked for by the name
    `auto`, and torch beside it.
    """
    backends = ["auto", "torch"] if config.backends == ["auto"] else config.backends
    return Plan(
        steps=tuple(
            _step("check", f"check-{name}", "checks", config, site, {"backend": name}) for name in backends
        ),
        inputs={"check.json": _json(config)},
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


def have_torchcrf() -> bool:
    return importlib.util.find_spec("torchcrf") is not None


def _step(workload: str, name: str, result: str, config: Any, site: Site, options: dict[str, str]) -> Step:
    """A step that runs one of the room's workloads with these options, by which the analysis knows it."""
    folder = f"steps/{name}"
    flags = [word for option, value in options.items() for word in (f"--{option}", value)]
    command = ("python", "-m", f"lab.rooms.semicrf.workload.{workload}", "--config", f"{workload}.json")
    corpus = getattr(config, "train", config)
    return Step(
        name=name,
        folder=folder,
        num_gpus=1 if site.gpus else 0,
        argv=(*command, *flags, "--out", folder),
        env={"OMP_NUM_THREADS": "1"} if site.vendor == "none" else {},
        # A hostile batch of a check takes 0.1 to 0.4 s on a CPU.
        timeout_s=config.step_timeout_s + getattr(config, "batches", 0),
        tools=("corpus",) if getattr(corpus, "data", "") == IN_CONTAINER else (),
        expects=(f"{folder}/{result}.json", *([f"{folder}/epochs.jsonl"] if workload == "train" else [])),
        labels={**options},
    )


def _notes(config: TrainConfig | None, site: Site) -> tuple[str, ...]:
    notes = []
    if config is not None and config.data == "synthetic":
        notes.append("synthetic corpus: it exercises the code and says nothing about speech")
    if site.vendor == "none":
        notes.append("no GPU: these numbers are from this machine's CPU")
    return tuple(notes)


def _json(config: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(config), indent=1).decode() + "\n"
