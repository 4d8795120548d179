"""`lab run nan` and `lab run nixnan` make runs; `lab nan` reads them, and nixnan logs from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.terminal.click_types import options_of, with_options
from lab.terminal.lazy import LazyGroup

if TYPE_CHECKING:
    from lab.core.plan import Experiment
    from lab.core.run import Run

KNOBS = (
    click.argument("experiment", nargs=-1, required=True),
    click.option(
        "--model",
        default="tiny",
        show_default=True,
        help="Hub id, folder, tiny or 7b-shape (both offline, random weights).",
    ),
    click.option("--layers", type=click.IntRange(min=1), help="Layers of tiny or 7b-shape. [default: 4, 32]"),
    click.option(
        "--prompt",
        multiple=True,
        default=("dizzy",),
        show_default=True,
        help="Several make a left-padded batch.",
    ),
    click.option("--max-new-tokens", type=click.IntRange(min=1), default=50, show_default=True),
    click.option("--seed", type=int, default=0, show_default=True),
    click.option(
        "--dtype",
        type=click.Choice(["float16", "bfloat16", "float32"]),
        default="float16",
        show_default=True,
        help="Of the baseline.",
    ),
    click.option(
        "--attn",
        type=click.Choice(["auto", "eager", "sdpa", "flash_attention_2"]),
        default="auto",
        show_default=True,
        help="Attention of the baseline.",
    ),
    click.option(
        "--quant",
        type=click.Choice(["auto", "none", "4bit"]),
        default="auto",
        show_default=True,
        help="Of the baseline. auto: 4bit for models that are loaded, none for random weights.",
    ),
    click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True),
    click.option(
        "--scale",
        type=click.FloatRange(min=0, min_open=True),
        default=0.5,
        show_default=True,
        help="Factor of attention_scale.",
    ),
    click.option(
        "--clip",
        type=click.FloatRange(min=0, min_open=True),
        default=10.0,
        show_default=True,
        help="Limit of attention_clip.",
    ),
    click.option(
        "--eps",
        type=click.FloatRange(min=0, min_open=True),
        default=1e-3,
        show_default=True,
        help="Epsilon of layernorm_eps.",
    ),
    click.option(
        "--provoke",
        type=click.Choice(["overflow", "scores", "nan-weight", "masked-softmax"]),
        help="Plant a cause in one layer.",
    ),
    click.option("--provoke-layer", type=click.IntRange(min=0), help="[default: the middle one]"),
)
WATCH_KNOBS = (
    click.option(
        "--counter",
        type=click.Choice(["auto", "kernel", "bits", "norm", "plain"]),
        default="auto",
        show_default=True,
        help="How the watch counts.",
    ),
    click.option(
        "--timing",
        type=click.IntRange(min=0),
        default=7,
        show_default=True,
        help="Forwards timed with and without the watch.",
    ),
)
NIXNAN_KNOBS = (
    click.option(
        "--sampling",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Instrument 1 in N launches of a kernel; 0: all.",
    ),
    click.option(
        "--line-info/--no-line-info",
        default=False,
        show_default=True,
        help="Source lines; needs code built with them.",
    ),
    click.option(
        "--max-errors", type=click.IntRange(min=0), default=0, show_default=True, help="Stop after N lines."
    ),
    click.option(
        "--histogram", is_flag=True, help="Ranges of exponents; a pass of its own, as it tears lines."
    ),
    click.option("--bin-spec", type=click.Path(path_type=Path), help="JSON file of exponent bins."),
    click.option("--only-kernel", "only_kernels", multiple=True, help="Exact short name; repeatable."),
    click.option(
        "--not-kernel", "not_kernels", multiple=True, help="Exact short name to leave alone; repeatable."
    ),
    click.option("--fun-detail", is_flag=True, help="Full names of kernels on repeats."),
    click.option(
        "--attach",
        type=click.Choice(["auto", "inject", "preload"]),
        default="auto",
        show_default=True,
        help="CUDA_INJECTION64_PATH, LD_PRELOAD, or the one after the other.",
    ),
)


@click.command("nan")
@with_options(*KNOBS, *WATCH_KNOBS)
@click.pass_context
def run_nan(ctx: click.Context, /, experiment: tuple[str, ...], **knobs: Any) -> Experiment:
    """Watch what every module takes and gives: baseline, bfloat16, attention_scale, ..., priority or all."""
    return _experiment(ctx, experiment, {**knobs, "sass": False})


@click.command("nixnan")
@with_options(*KNOBS, *NIXNAN_KNOBS)
@click.pass_context
def run_nixnan(ctx: click.Context, /, experiment: tuple[str, ...], **knobs: Any) -> Experiment:
    """The same experiments under nixnan.so, instruction by instruction. NIXNAN_SO names the one that you built."""
    from lab.rooms.nan.nixnan.runner import read_bin_spec

    names = (
        "sampling",
        "line_info",
        "max_errors",
        "histogram",
        "only_kernels",
        "not_kernels",
        "fun_detail",
        "attach",
    )
    tool = {name: knobs.pop(name) for name in names}
    path = knobs.pop("bin_spec")
    tool["bin_spec"] = read_bin_spec(path) if path else None
    return _experiment(ctx, experiment, {**knobs, "sass": True, "nixnan": tool})


def _experiment(ctx: click.Context, experiment: tuple[str, ...], knobs: dict[str, Any]) -> Experiment:
    import msgspec

    from lab.core.plan import Experiment, Plan, Site
    from lab.rooms.nan.config import NanConfig
    from lab.rooms.nan.plan import experiments, plan

    # A folder here is another folder for a step, which works in the run's own.
    model = Path(knobs["model"])
    named = str(model.resolve()) if model.is_dir() else knobs["model"]
    config = msgspec.convert({**knobs, "model": named, "experiments": experiments(experiment)}, NanConfig)
    options = options_of(ctx)
    if config.device == "cpu":
        options = msgspec.structs.replace(options, gpus="none")

    def make_plan(site: Site, root: Path) -> Plan:
        return plan(config, site)

    return Experiment("nan", make_plan, options)


LAZY = {
    "analyze": (
        "lab.rooms.nan.cli:analyze",
        "Rank a run's experiments; verdicts, causes, and a page.",
    ),
    "parse": (
        "lab.rooms.nan.nixnan.cli:parse",
        "Read nixnan logs of any build: counts, integrity, kernels, causes.",
    ),
    "diff": ("lab.rooms.nan.nixnan.cli:diff", "Which sites differ between two logs, beyond the noise."),
}


@click.group("nan", cls=LazyGroup, lazy=LAZY)
def nan() -> None:
    """Where NaN and Inf are born: analyse a run, read nixnan's logs, compare two.

    The experiments themselves are `lab run nan ...` and `lab run nixnan ...`.
    """


@click.command("analyze")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--sass", is_flag=True, help="Ask for nixnan's logs: an experiment without one is an error.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Where tables, figures and page go. [default: the run; else experiments/NAME_analysis]",
)
@click.option("--json", "as_json", is_flag=True, help="Findings as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def analyze(folders: tuple[Path, ...], sass: bool, out: Path | None, as_json: bool, quiet: bool) -> None:
    """Ranking, births, layers, instructions, evidence: report.html of a run or of the published layout.

    Several runs become one page: `lab nan analyze RUN_OF_NAN RUN_OF_NIXNAN` joins modules and instructions of the same
    experiments. A folder that lab did not make is not written to.
    """
    from lab.core.files import make_folder
    from lab.core.options import Options
    from lab.core.run import home_of
    from lab.errors import MissingError, needs
    from lab.terminal.console import Console
    from lab.terminal.findings import raise_for_findings, show_findings

    with needs("analysis"):
        from lab.rooms.nan.findings import analyse_nan
    for folder in folders:
        if not folder.is_dir():
            if folder.exists():
                raise MissingError(
                    "this is a file, not a folder", where=folder, fix=f"lab nan parse {folder}"
                )
            raise MissingError("no such folder", where=folder, fix="see `lab runs list`")
    target = out or (home_of(folders[0]) if len(folders) == 1 else home_of(Path(_joined_name(folders))))
    runs = [_run_of(folder) for folder in folders]
    make_folder(target)
    findings = analyse_nan(folders, target, runs, Console(quiet=quiet).detail, sass=sass)
    show_findings(folders[0], findings, Options(json=as_json))
    raise_for_findings(findings, folders[0])


def _joined_name(folders: tuple[Path, ...]) -> str:
    return "+".join(folder.resolve().name for folder in folders)


def _run_of(folder: Path) -> Run | None:
    """The run in this folder, None for a recording. Raises UsageError for another room's run."""
    from lab.core.run import Run
    from lab.errors import UsageError

    if not Run.is_run(folder):
        return None
    run = Run.open(folder)
    if run.manifest.room != "nan":
        raise UsageError(
            f"this is a run of the room {run.manifest.room!r}", where=folder, fix=f"lab analyze {folder}"
        )
    return run
