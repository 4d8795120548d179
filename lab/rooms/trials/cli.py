"""`lab run trials`: one command, many times, in cells; `lab run replay`: the same steps, bit by bit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.terminal.options import (
    ABOVE_ZERO,
    ONE_OR_MORE,
    PATH,
    ZERO_OR_MORE,
    as_json,
    choice,
    option,
    options_of,
    seed,
)

if TYPE_CHECKING:
    from lab.core.options import Options
    from lab.core.plan import Experiment
    from lab.rooms.trials.config import TrialsConfig

RATE = click.FloatRange(min=0, max=1, min_open=True, max_open=True)
UNTIL_TRIALS = 160


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

    options = options_of(ctx)
    if as_json:
        options = msgspec.structs.replace(options, json=True)
    if flags["command"] == ("gpus",):
        return _of_gpus(flags, options)
    config = _config(flags, options.image)
    further = tuple(dict.fromkeys(cell.image for cell in config.cells if cell.image))
    options = msgspec.structs.replace(options, image=config.image, images=further)

    def make_plan(site: Site, root: Path) -> Plan:
        _refuse_missing(config, options, root)
        return plan(config, site)

    return Experiment("trials", make_plan, options)


def _refuse_missing(config: TrialsConfig, options: Options, root: Path) -> None:
    """Raises MissingError for a command that cannot start in this environment; a container's is not seen."""
    from lab.rooms.trials.startable import refuse_missing

    if options.engine not in (None, "local"):
        return
    for cell in config.cells:
        if not (cell.image or config.image):
            env, cwd = {**os.environ, **cell.env}, Path(config.cwd or root)
            words = [word.replace("{cell}", cell.name) for word in (*config.command, *cell.args)]
            refuse_missing(words, env, cwd, cell.name if len(config.cells) > 1 else "")


def _of_gpus(flags: dict[str, Any], options: Options) -> Experiment:
    from lab.core.plan import Experiment, Plan, Site
    from lab.errors import UsageError
    from lab.rooms.trials.gpus.config import GpusConfig, plan

    if any(flags[name] for name in flags if name not in ("command", "trials", "seed", "num_gpus")):
        raise UsageError("trials gpus takes -n (rounds) and --seed alone", fix="lab run trials -n 5 gpus")
    config = GpusConfig(rounds=flags["trials"] or 3, seed=flags["seed"] or 0)

    def make_plan(site: Site, root: Path) -> Plan:
        return plan(config, site)

    return Experiment("trials", make_plan, options)


@click.command("replay")
@option("-k", "--runs", type=ONE_OR_MORE, default=3, help="How often the command runs.")
@option("--steps", type=ONE_OR_MORE, default=3, help="Training steps that are recorded, from the first.")
@option("--repeats", type=ZERO_OR_MORE, default=2, help="How often each step runs again inside its process.")
@choice("--level", "op module", "op: every operator; module: outputs and gradients only, cheap.")
@option("--to-the-end", is_flag=True, help="Let the command run on after the recorded steps.")
@option("--against", type=PATH, metavar="RUN", help="An earlier replay of this command, of another machine.")
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
    import msgspec

    from lab.core.plan import Experiment, Plan, Site
    from lab.errors import UsageError
    from lab.rooms.trials.replay.config import ReplayConfig, plan
    from lab.rooms.trials.startable import refuse_missing

    options = options_of(ctx)
    if as_json:
        options = msgspec.structs.replace(options, json=True)
    if not flags["command"]:
        raise UsageError("no command to replay", fix="lab run replay -k 3 -- python train.py")
    _refuse_secrets(flags["command"])
    against = flags.pop("against")
    config = ReplayConfig(
        **flags,
        against=None if against is None else str(_replayed(against)),
        cwd=_folder([], options.image),
        in_image=options.image is not None,
    )

    def make_plan(site: Site, root: Path) -> Plan:
        if not config.in_image and options.engine in (None, "local"):
            refuse_missing(config.command, os.environ, Path(config.cwd or root))
        return plan(config, site)

    return Experiment("trials", make_plan, options)


def _replayed(folder: Path) -> Path:
    from lab.errors import MissingError
    from lab.workload.recorder.format import OF_STEPS

    if not any(folder.glob(f"steps/*/{OF_STEPS}")):
        raise MissingError(
            "no replay with records", location=folder, fix="name the run folder of a lab run replay"
        )
    return folder.resolve()


def _config(flags: dict[str, Any], image: str | None) -> TrialsConfig:
    """`image`: of the run, for cells that name none."""
    from lab.errors import UsageError
    from lab.rooms.trials.cells import Matrix, cell, cells_of, checked, read_matrix
    from lab.rooms.trials.failure import parse

    words = flags["command"]
    if flags["again"] is not None:
        return _again(flags, image)
    if len(words) == 1 and words[0].endswith((".yaml", ".yml")):
        if flags["cells"] or flags["until"]:
            raise UsageError("a matrix names its own cells", fix="drop --cell and --until")
        matrix = read_matrix(Path(words[0]))
        cells = cells_of(matrix)
    else:
        if not words:
            raise UsageError("no command to try", fix="lab run trials -n 40 -- python train.py")
        matrix = Matrix(command=words)
        cells = checked([cell(flag) for flag in flags["cells"]] or [cell("none")])
    fail = flags["fail"] or matrix.fail
    parse(fail)
    until = _until(flags, len(cells))
    baseline = _baseline(flags["baseline"] or matrix.baseline, [cell.name for cell in cells])
    step_time = flags["step_time"] or matrix.step_time
    settings = {
        "command": _words(matrix.command),
        "cells": cells,
        "baseline": baseline,
        "trials": flags["trials"] or (UNTIL_TRIALS if until else matrix.trials),
        "fail": fail,
        "seed": matrix.seed if flags["seed"] is None else flags["seed"],
        "step_time": step_time,
        "stop": flags["stop"] or matrix.stop,
        "until": until,
        "trial_timeout_s": flags["trial_timeout_s"],
        "num_gpus": flags["num_gpus"],
        "cwd": _folder([cell.image for cell in cells], image),
        "image": image,
    }
    return _made(settings)


def _folder(of_cells: Sequence[str | None], image: str | None) -> str | None:
    """The caller's folder, in which the command runs; None: in the run folder, in the image of the run.

    Raises UsageError where images of cells cannot get it: cells would run in different folders.
    """
    folder = Path.cwd()
    if image is None and not any(of_cells):
        return str(folder)
    from lab.engines.docker.refusals import refuse_system_folder
    from lab.errors import UsageError

    try:
        refuse_system_folder(folder.resolve(), "the folder of the command")
    except UsageError as error:
        if any(of_cells):
            raise UsageError(
                "the command runs in this folder, which cannot be mounted into the containers of its cells",
                location=folder,
                fix="start lab in the folder of your program, not in a home or a system folder",
            ) from error
        return None
    return str(folder.resolve())


def _again(flags: dict[str, Any], image: str | None) -> TrialsConfig:
    """One cell and one seed, as an earlier run had them, in its image unless another is named."""
    import msgspec

    from lab.errors import BadDataError, MissingError, UsageError
    from lab.rooms.trials.config import CONFIG
    from lab.rooms.trials.rows import read_settings, read_trial

    folder: Path = flags["again"]
    taken = ("cells", "baseline", "fail", "stop", "until", "was", "fixed_at", "seed", "command")
    if any(flags[name] for name in taken):
        raise UsageError(
            "--again takes command, cell and seed from the earlier run", fix="give -n alone with it"
        )
    row, path = read_trial(folder), folder.parent.parent / CONFIG
    if row is None:
        raise MissingError("no trial ended in this folder", location=folder, fix="name RUN/steps/CELL-0000")
    config = read_settings(path)
    cell = next((cell for cell in config.cells if cell.name == row.cell), None)
    if cell is None or row.seed is None:
        raise BadDataError("the trial and its run do not belong together", location=folder)
    return msgspec.structs.replace(
        config,
        cells=(cell,),
        baseline=cell.name,
        trials=flags["trials"] or 1,
        seed=row.seed,
        same_seed=True,
        image=image or config.image,
        stop=False,
        until=None,
    )


def _until(flags: dict[str, Any], cells: int) -> dict[str, float] | None:
    from lab.errors import UsageError

    was, fixed = flags["was"], flags["fixed_at"]
    if not flags["until"]:
        if was is not None or fixed is not None:
            raise UsageError("--was and --fixed-at belong to --until fixed", fix="add --until fixed")
        return None
    if was is None:
        raise UsageError("--until fixed needs the old rate of failure", fix="add --was 0.3")
    if cells > 1:
        raise UsageError("--until fixed asks about one cell", fix="name one --cell, or compare with --stop")
    if flags["stop"]:
        raise UsageError("--stop compares cells, --until asks about one", fix="drop one of them")
    fixed = was / 6 if fixed is None else fixed
    if fixed >= was:
        raise UsageError(f"--fixed-at {fixed:g} is not below --was {was:g}")
    return {"was": was, "fixed": fixed}


def _baseline(asked: str | None, names: list[str]) -> str:
    from lab.errors import UsageError

    if asked is not None and asked not in names:
        raise UsageError(f"no cell {asked!r} to compare with", fix=f"one of: {', '.join(names)}")
    return asked or next((name for name in ("none", "baseline") if name in names), names[0])


def _words(command: str | tuple[str, ...]) -> tuple[str, ...]:
    import shlex

    from lab.errors import ConfigError

    if not isinstance(command, str):
        return command
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise ConfigError(f"the command cannot be split into words: {error}", location=command) from error


def _made(settings: dict[str, Any]) -> TrialsConfig:
    import msgspec

    from lab.errors import ConfigError
    from lab.rooms.trials.config import TrialsConfig

    _refuse_secrets(
        [
            *settings["command"],
            *(v for setting in settings["cells"] for v in (*setting.env.values(), *setting.args)),
        ]
    )
    try:
        return msgspec.convert(
            {**settings, "cells": [msgspec.to_builtins(c) for c in settings["cells"]]}, TrialsConfig
        )
    except msgspec.ValidationError as error:
        raise ConfigError(f"these settings do not fit: {error}") from error


def _refuse_secrets(words: Sequence[str]) -> None:
    from lab.errors import UsageError
    from lab.secrets import redact, secret_values

    secrets = secret_values()
    if any(redact(word, secrets) != word for word in words):
        raise UsageError(
            "a secret stands in the command or in a cell, and a run keeps both on disk",
            fix="leave it in its environment variable, which every trial inherits",
        )
