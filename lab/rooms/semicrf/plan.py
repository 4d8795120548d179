"""From a config and a site to the steps of training, diagnosis and check. Pure."""

from __future__ import annotations

import importlib.util

import msgspec
from msgspec.structs import replace

from lab.core.plan import Plan, Site
from lab.core.step import Step
from lab.rooms.semicrf.config import CheckConfig, DiagnoseConfig, TrainConfig

IN_CONTAINER = "/corpus"  # where the image's tool `corpus` mounts what LAB_CORPUS names
FILES = {"train": ("result.json", "epochs.jsonl"), "diagnose": ("{part}.json",), "check": ("checks.json",)}
"""What a step of each workload leaves."""


def plan_train(
    config: TrainConfig, site: Site, *, command: str = "train", skipped: tuple[str, ...] = ()
) -> Plan:
    """One step per (head, backend); `skipped` heads become rows with their reason."""
    steps = {
        f"{model}-{name}": {"model": model, "backend": name}
        for model in config.models
        for name in (["own"] if model == "pytorch-crf" else config.backends)
    }
    reason = "the package torchcrf (PyPI: pytorch-crf) is not installed"
    absent = {name: reason for name, options in steps.items() if options["model"] in skipped}
    plan = plan_of("train", config, site, steps, config)
    return replace(plan, skipped=absent, config={**plan.config, "command": command})


def plan_diagnose(config: DiagnoseConfig, site: Site) -> Plan:
    """The matrix on the tested backend and on a plainer one, then the probes; or the user's own kernel.

    `auto` is tested as users get it: which form that is, and so which is plainer, the device says.
    """
    tested = config.train.backends[0]
    # A case has no corpus to train on: only the probes can use it.
    trained = [] if config.case else ["cells"] if tested == "naive" else ["cells", "reference"]
    parts = ["partition"] if config.partition else [*trained, "probes"]
    steps = {part: {"part": part, "backend": tested} for part in parts}
    plan = plan_of("diagnose", config, site, steps, None if config.case or config.partition else config.train)
    kind, name = ("kernel", config.partition) if config.partition else ("backend", tested)
    notes = (f"{kind} under test: {name}", *plan.notes)
    return replace(plan, notes=notes, config={**plan.config, "tested": name})


def plan_check(config: CheckConfig, site: Site) -> Plan:
    """One step per backend, so that a crash of one leaves the others' results.

    Which one is the default (CUDA C, C++, torch) only the device can say, so it is asked for by the name
    `auto`, and torch beside it.
    """
    backends = ["auto", "torch"] if config.backends == ["auto"] else config.backends
    return plan_of("check", config, site, {f"check-{name}": {"backend": name} for name in backends})


def have_torchcrf() -> bool:
    return importlib.util.find_spec("torchcrf") is not None


def plan_of(
    workload: str,
    config: TrainConfig | DiagnoseConfig | CheckConfig,
    site: Site,
    steps: dict[str, dict[str, str]],
    corpus: TrainConfig | None = None,
) -> Plan:
    """One of the room's workloads with the options of each step, by which the analysis knows it; `corpus`
    says what is trained on.
    """
    synthetic = corpus is not None and corpus.data == "synthetic"
    notes = ["synthetic corpus: it exercises the code and says nothing about speech"] if synthetic else []
    notes += ["no GPU: these numbers are from this machine's CPU"] if site.vendor == "none" else []
    command = ("python", "-m", f"lab.rooms.semicrf.workload.{workload}", "--config", f"{workload}.json")
    # A hostile batch of a check takes 0.1 to 0.4 s on a CPU.
    batches_s = config.batches if isinstance(config, CheckConfig) else 0

    def step(name: str, options: dict[str, str]) -> Step:
        folder = f"steps/{name}"
        flags = (word for option, value in options.items() for word in (f"--{option}", value))
        return Step(
            name=name,
            folder=folder,
            num_gpus=1 if site.gpus else 0,
            argv=(*command, *flags, "--out", folder),
            env={"OMP_NUM_THREADS": "1"} if site.vendor == "none" else {},
            timeout_s=config.step_timeout_s + batches_s,
            tools=("corpus",) if corpus is not None and corpus.data == IN_CONTAINER else (),
            expects=tuple(f"{folder}/{file.format(**options)}" for file in FILES[workload]),
            labels={**options},
        )

    text = msgspec.json.format(msgspec.json.encode(config), indent=1).decode() + "\n"
    return Plan(
        steps=tuple(step(name, options) for name, options in steps.items()),
        inputs={f"{workload}.json": text},
        notes=tuple(notes),
        config={"command": workload, **msgspec.to_builtins(config)},
    )
