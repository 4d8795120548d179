"""`lab run nan` and `lab run nixnan` make runs; `lab nan` reads them, and nixnan logs from anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.rooms.nan.options import EXPERIMENTS, NIXNAN, TRAINING, WATCH
from lab.terminal.group import LazyGroup
from lab.terminal.options import options_of

if TYPE_CHECKING:
    from lab.core.plan import Experiment

COMMANDS = {
    "analyze": (
        "lab.rooms.nan.analyze_command:analyze",
        "Rank a run's experiments; verdicts, causes, and a page.",
    ),
    "parse": (
        "lab.rooms.nan.nixnan.cli:parse",
        "Read nixnan logs of any build: counts, integrity, kernels, causes.",
    ),
}


@click.command("nan")
@EXPERIMENTS
@WATCH
@TRAINING
@click.pass_context
def run_nan(ctx: click.Context, /, experiment: tuple[str, ...], **settings: Any) -> Experiment:
    """Watch every module's inputs and outputs for NaN and Inf, one process per experiment.

    Experiments: baseline, bfloat16, attention_scale, attention_clip, 8bit, layernorm_eps, eager; priority is
    the first three and eager, all is all of them.

    `train` guards a training job instead, from the batch to the updated weights: `lab run nan train -- python
    train.py ...`, any script.
    """
    training = _training(experiment, settings.pop("on_bad"))
    names = ("baseline",) if training else experiment
    return _experiment(ctx, names, {**settings, "sass": False, "train": training})


@click.command("nixnan")
@EXPERIMENTS
@NIXNAN
@click.pass_context
def run_nixnan(ctx: click.Context, /, experiment: tuple[str, ...], **settings: Any) -> Experiment:
    """Run the experiments of `lab run nan` under nixnan.so, which checks floating-point instructions.

    NIXNAN_SO is the path of the nixnan.so that you built.
    """
    from lab.rooms.nan.config import NixnanConfig
    from lab.rooms.nan.nixnan.running.bin_spec import read_bin_spec

    tool = {name: settings.pop(name) for name in NixnanConfig.__struct_fields__ if name in settings}
    tool["bin_spec"] = read_bin_spec(tool["bin_spec"]) if tool["bin_spec"] else None
    return _experiment(ctx, experiment, {**settings, "sass": True, "nixnan": tool})


@click.group("nan", cls=LazyGroup, lazy=COMMANDS)
def nan() -> None:
    """Find where NaN and Inf are born: analyse a run, read nixnan's logs.

    The experiments themselves are `lab run nan ...` and `lab run nixnan ...`; `lab diff` compares two logs.
    """


def _training(words: tuple[str, ...], on_bad: str) -> dict[str, Any] | None:
    """The settings of a training job; None if the words are experiments. UsageError without a command."""
    from lab.errors import UsageError
    from lab.rooms.nan.config import TRAIN

    if words[0] != TRAIN:
        return None
    if not words[1:]:
        raise UsageError("train needs a command", fix="lab run nan train -- python train.py")
    return {"command": words[1:], "cwd": str(Path.cwd()), "on_bad": on_bad}


def _experiment(ctx: click.Context, names: tuple[str, ...], settings: dict[str, Any]) -> Experiment:
    import msgspec

    from lab.core.plan import Experiment, Plan, Site
    from lab.rooms.nan.config import NanConfig
    from lab.rooms.nan.nixnan.running.preflight import check_named
    from lab.rooms.nan.plan import experiments, plan

    # A step works in the run's folder, where a relative path would name another one.
    model = Path(settings["model"])
    settings["model"] = str(model.resolve()) if model.is_dir() else settings["model"]
    config = msgspec.convert({**settings, "experiments": experiments(names)}, NanConfig)
    options = options_of(ctx)
    if config.device == "cpu":
        options = msgspec.structs.replace(options, gpus="none")

    def make_plan(site: Site, root: Path) -> Plan:
        planned = plan(config, site)
        if config.sass:
            in_container = options.image is not None
            check_named(os.environ, in_container=in_container, dry_run=options.dry_run)
        return planned

    return Experiment("nan", make_plan, options)
