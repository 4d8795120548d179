"""`lab run trials`: one command, many times, in cells; `lab run replay`: the same steps, bit by bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.terminal.options import (
    ABOVE_ZERO,
    ONE_OR_MORE,
    PATH,
    ZERO_OR_MORE,
    Finite,
    as_json,
    choice,
    option,
    options_of,
    seed,
)

if TYPE_CHECKING:
    from lab.core.options import Options
    from lab.core.plan import Experiment

RATE = Finite(min=0, max=1, min_open=True, max_open=True)


@click.command("trials")
@option("-n", "--trials", type=ONE_OR_MORE, help="Trials per cell. [default: 20; with --until 160]")
@option(
    "--cell",
    "cells",
    multiple=True,
    metavar="NAME|YAML",
    help="A cell: none, a preset, presets joined by +, or {name: x, env: {A: 1}, args: [--flag], gpu: 0}.",
)
@option("--baseline", help="The cell that others are compared with. [default: none, else the first]")
@option(
    "--fail",
    metavar="WHEN",
    help="A failure: exit!=0, nan in loss, loss > 3, /REGEX/ or timeout, joined by `or`. [default: exit!=0]",
)
@option(
    "--step-time",
    metavar="NAME",
    help="The number in the output that is the time of one step: tells a cure from slowness.",
)
@option("--stop", is_flag=True, help="End a cell once it is shown to fail less; tests hold at every look.")
@option("--until", type=click.Choice(["fixed"]), help="Run until it is fixed or not, against --was.")
@option("--was", type=RATE, help="The old rate of failure.")
@option("--fixed-at", type=RATE, help="The rate that counts as fixed. [default: a sixth of --was]")
@option("--trial-timeout", "trial_timeout_s", type=ABOVE_ZERO, help="Limit of one trial, s.")
@option("--num-gpus", type=ZERO_OR_MORE, default=1, help="GPUs of one trial, where there are any.")
@option(
    "--again",
    type=PATH,
    metavar="RUN/steps/TRIAL",
    help="Run this trial of an earlier run again: its command, cell and seed.",
)
@seed(None, "Seed of the first trial, and of the order. Trial i gets {seed} = SEED + i. [default: 0]")
@as_json("Rates, comparisons and whether it is decided")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="MATRIX.yaml | gpus | -- CMD")
@click.pass_context
def run_trials(ctx: click.Context, /, as_json: bool, **flags: Any) -> Experiment:
    """Run a command many times, in cells that differ in one thing: how often does it fail, what cures it?

    \b
    lab run trials -n 40 --cell none --cell tf32_off --fail 'exit!=0 or nan in loss' -- python train.py
    lab run trials --until fixed --was 0.3 -- python train.py
    lab run trials MATRIX.yaml
    lab run trials --again RUN/steps/none-0007 -n 5
    lab run trials gpus                # every GPU of the box against the others: bits, speed, counters

    Presets: none, tf32_off, tf32_torch_off, deterministic, deterministic_strict, cudnn_deterministic,
    flash_off, sdpa_math, anomaly, cublas_workspace, launch_blocking, launch_blocking_hip, nccl_ring,
    nccl_tree, nccl_simple, nccl_no_p2p, nccl_no_nvls, one_queue, no_caching_allocator,
    expandable_segments, one_thread.
    """
    import msgspec

    from lab.core.plan import Experiment, Plan, Site
    from lab.rooms.trials.plan import plan
    from lab.rooms.trials.settings import refuse_commands_that_cannot_start, settings_of

    options = _options(ctx, as_json)
    if flags["command"] == ("gpus",):
        return _of_gpus(flags, options)
    config = settings_of(flags, options.image)
    further = tuple(dict.fromkeys(cell.image for cell in config.cells if cell.image))
    options = msgspec.structs.replace(options, image=config.image, images=further)

    def make_plan(site: Site, root: Path) -> Plan:
        refuse_commands_that_cannot_start(config, options, root)
        return plan(config, site)

    return Experiment("trials", make_plan, options)


def _options(ctx: click.Context, as_json: bool) -> Options:
    import msgspec

    options = options_of(ctx)
    return msgspec.structs.replace(options, json=True) if as_json else options


def _of_gpus(flags: dict[str, Any], options: Options) -> Experiment:
    from lab.core.plan import Experiment
    from lab.errors import UsageError
    from lab.rooms.trials.gpus import GpusConfig, plan

    if any(flags[name] for name in flags if name not in ("command", "trials", "seed", "num_gpus")):
        raise UsageError("trials gpus takes -n (rounds) and --seed alone", fix="lab run trials -n 5 gpus")
    config = GpusConfig(rounds=flags["trials"] or 3, seed=flags["seed"] or 0)
    return Experiment("trials", lambda site, root: plan(config, site), options)


@click.command("replay")
@option("-k", "--runs", type=ONE_OR_MORE, default=3, help="How often the command runs.")
@option("--steps", type=ONE_OR_MORE, default=3, help="Training steps that are recorded, from the first.")
@option("--repeats", type=ZERO_OR_MORE, default=2, help="How often each step runs again inside its process.")
@choice("--level", "op module", "op: every operator; module: outputs and gradients only, cheap.")
@option("--to-the-end", is_flag=True, help="Let the command run on after the recorded steps.")
@as_json("The verdict and the first difference")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD")
@click.pass_context
def run_replay(ctx: click.Context, /, as_json: bool, **flags: Any) -> Experiment:
    """Run the same training steps again and again: which tensor is the first that differs in its bits?

    \b
    lab run replay -k 3 -- python train.py
    lab run replay --steps 100 --level module -- torchrun --nproc-per-node 8 train.py

    The command runs K times, and inside each run every recorded step runs again from the inputs, random
    numbers and buffers that it began with. It needs torch 2.4 or newer, and no change for lab.
    """
    from lab.core.plan import Experiment, Plan, Site
    from lab.errors import UsageError
    from lab.rooms.trials.replay import ReplayConfig, plan
    from lab.rooms.trials.settings import folder_of, refuse_missing, refuse_secrets

    options = _options(ctx, as_json)
    if not flags["command"]:
        raise UsageError("no command to replay", fix="lab run replay -k 3 -- python train.py")
    refuse_secrets(flags["command"])
    config = ReplayConfig(**flags, cwd=folder_of([], options.image), in_image=options.image is not None)

    def make_plan(site: Site, root: Path) -> Plan:
        if not config.in_image and options.engine in (None, "local"):
            refuse_missing(config.command, os.environ, Path(config.cwd or root))
        return plan(config, site)

    return Experiment("trials", make_plan, options)
