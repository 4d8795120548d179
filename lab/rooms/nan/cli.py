"""`lab run nan` and `lab run nixnan` make runs; `lab nan` reads them, and nixnan logs from anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.terminal.group import LazyGroup
from lab.terminal.options import (
    ABOVE_ZERO,
    ONE_OR_MORE,
    ZERO_OR_MORE,
    as_json,
    choice,
    option,
    options_of,
    out,
    quiet,
    seed,
    with_options,
)

if TYPE_CHECKING:
    from lab.core.plan import Experiment
    from lab.core.run import Run

_MODEL_HELP = "Hub id, folder, tiny or 7b-shape (the last two are offline, with random weights)."
_QUANT_HELP = "Quantization of the baseline. auto: 4bit for models that are loaded, none for random weights."

EXPERIMENTS = with_options(
    click.argument("experiment", nargs=-1, required=True),
    option("--model", default="tiny", help=_MODEL_HELP),
    click.option("--layers", type=click.IntRange(min=1), help="Layers of tiny or 7b-shape. [default: 4, 32]"),
    option(
        "--prompt",
        multiple=True,
        default=("dizzy",),
        help="Text to continue; several make a left-padded batch.",
    ),
    option("--max-new-tokens", type=ONE_OR_MORE, default=50, help="Tokens to generate, exactly."),
    seed(),
    choice("--dtype", "float16 bfloat16 float32", "Type of the baseline's weights and computation."),
    choice("--attn", "auto eager sdpa flash_attention_2", "Attention of the baseline."),
    choice("--quant", "auto none 4bit", _QUANT_HELP),
    choice("--device", "auto cuda cpu", "Where the model runs. auto: the GPU if there is one."),
    option("--scale", type=ABOVE_ZERO, default=0.5, help="Factor of attention_scale."),
    option("--clip", type=ABOVE_ZERO, default=10.0, help="Limit of attention_clip."),
    option("--eps", type=ABOVE_ZERO, default=1e-3, help="Epsilon of layernorm_eps."),
    click.option(
        "--provoke",
        type=click.Choice(["overflow", "scores", "nan-weight", "masked-softmax"]),
        help="Plant a known cause in one layer.",
    ),
    click.option(
        "--provoke-layer", type=ZERO_OR_MORE, help="Layer to plant it in. [default: the middle one]"
    ),
)
WATCH = with_options(
    choice(
        "--counter",
        "auto kernel bits norm plain",
        "How numbers are counted: kernel (Triton), norm (infinity norms first), bits (in C, on a CPU), "
        "plain (torch, slow). auto: kernel on a GPU, norm where Triton is missing, bits on a CPU.",
    ),
)
NIXNAN = with_options(
    option(
        "--sampling",
        type=ZERO_OR_MORE,
        default=0,
        help="Instrument 1 in N launches of a kernel; 0: all.",
    ),
    option(
        "--line-info/--no-line-info",
        default=False,
        help="Report source lines; needs code built with them.",
    ),
    option("--max-errors", type=ZERO_OR_MORE, default=0, help="Stop after N lines; 0: never."),
    click.option(
        "--histogram", is_flag=True, help="Log ranges of exponents. It tears lines: needs a run of its own."
    ),
    click.option("--bin-spec", type=click.Path(path_type=Path), help="JSON file of exponent bins."),
    click.option(
        "--only-kernel",
        "only_kernels",
        multiple=True,
        help="Instrument only this exact short name; repeatable.",
    ),
    click.option(
        "--not-kernel",
        "not_kernels",
        multiple=True,
        help="Do not instrument this exact short name; repeatable.",
    ),
    click.option(
        "--inventory",
        is_flag=True,
        help="Only list the kernels, as options for --only-kernel. Fast; checks nothing.",
    ),
    click.option("--fun-detail", is_flag=True, help="Write full names of kernels on repeats too."),
    choice(
        "--attach",
        "auto inject preload",
        "inject: CUDA_INJECTION64_PATH. preload: LD_PRELOAD. auto: inject, then preload if it never "
        "attached.",
    ),
)

TRAINING = with_options(
    choice("--on-bad", "replay keep raise", "With train: what to do about a bad step."),
)


COMMANDS = {
    "analyze": (
        "lab.rooms.nan.cli:analyze",
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
    from lab.rooms.nan.nixnan.running.preflight import read_bin_spec

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


@click.command("analyze")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--sass", is_flag=True, help="Require nixnan's logs: an experiment without one is an error.")
@out("Folder for tables, figures and page. [default: the run; else experiments/NAME_analysis]")
@as_json("The findings")
@quiet()
def analyze(folders: tuple[Path, ...], sass: bool, out: Path | None, as_json: bool, quiet: bool) -> None:
    """Write report.html of a run or of the published layout: ranking, births, layers, instructions, evidence.

    Several runs become one page: `lab nan analyze RUN_OF_NAN RUN_OF_NIXNAN` joins modules and instructions of
    the same experiments. A folder that lab did not make is never written to.
    """
    from lab.core.files import make_folder
    from lab.core.options import Options
    from lab.core.run import home_of
    from lab.errors import needs
    from lab.terminal.console import Console
    from lab.terminal.findings import raise_for_findings, show_findings

    with needs("analysis"):
        from lab.rooms.nan.findings import analyse_nan
    for folder in folders:
        _check_folder(folder)
    runs = [_run_of(folder) for folder in folders]
    joined = folders[0] if len(folders) == 1 else Path("+".join(folder.resolve().name for folder in folders))
    target = out or home_of(joined)
    make_folder(target)
    findings = analyse_nan(folders, target, runs, Console(quiet=quiet).detail, sass=sass)
    show_findings(folders[0], findings, Options(json=as_json))
    raise_for_findings(findings, folders[0])


def _check_folder(folder: Path) -> None:
    from lab.errors import MissingError, not_here

    if folder.is_dir():
        return
    if folder.exists():
        raise MissingError("this is a file, not a folder", location=folder, fix=f"lab nan parse {folder}")
    raise not_here("no such folder", folder, "see `lab runs list`")


def _run_of(folder: Path) -> Run | None:
    """The run in this folder, None for a recording. Raises UsageError for another room's run."""
    from lab.core.run import Run
    from lab.errors import UsageError

    if not Run.is_run(folder):
        return None
    run = Run.open(folder)
    if run.manifest.room != "nan":
        raise UsageError(
            f"this is a run of the room {run.manifest.room!r}", location=folder, fix=f"lab analyze {folder}"
        )
    return run
