"""`lab run nan`, `lab run nixnan`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lab.cli import options_of

KNOBS = (
    click.argument("experiment", nargs=-1, required=True),
    click.option("--model", default="tiny", show_default=True,
                 help="Hub id, folder, tiny or 7b-shape (both offline, random weights)."),
    click.option("--layers", type=click.IntRange(min=1), help="Layers of tiny or 7b-shape. [default: 4, 32]"),
    click.option("--prompt", multiple=True, default=("dizzy",), show_default=True,
                 help="Several make a left-padded batch."),
    click.option("--max-new-tokens", type=click.IntRange(min=1), default=50, show_default=True),
    click.option("--seed", type=int, default=0, show_default=True),
    click.option("--dtype", type=click.Choice(["float16", "bfloat16", "float32"]), default="float16", show_default=True,
                 help="Of the baseline."),
    click.option("--attn", type=click.Choice(["auto", "eager", "sdpa", "flash_attention_2"]), default="auto",
                 show_default=True, help="Attention of the baseline."),
    click.option("--quant", type=click.Choice(["auto", "none", "4bit"]), default="auto", show_default=True,
                 help="Of the baseline. auto: 4bit for models that are loaded, none for random weights."),
    click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True),
    click.option("--scale", type=click.FloatRange(min=0, min_open=True), default=0.5, show_default=True,
                 help="Factor of attention_scale."),
    click.option("--clip", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True,
                 help="Limit of attention_clip."),
    click.option("--eps", type=click.FloatRange(min=0, min_open=True), default=1e-3, show_default=True,
                 help="Epsilon of layernorm_eps."),
    click.option("--provoke", type=click.Choice(["overflow", "scores", "nan-weight", "masked-softmax"]),
                 help="Plant a cause in one layer."),
    click.option("--provoke-layer", type=click.IntRange(min=0), help="[default: the middle one]"),
)  # fmt: skip
WATCH_KNOBS = (
    click.option("--counter", type=click.Choice(["auto", "kernel", "bits", "norm", "plain"]), default="auto", show_default=True,
                 help="How the watch counts."),
    click.option("--timing", type=click.IntRange(min=0), default=7, show_default=True,
                 help="Forwards timed with and without the watch."),
)  # fmt: skip
NIXNAN_KNOBS = (
    click.option("--sampling", type=click.IntRange(min=0), default=0, show_default=True,
                 help="Instrument 1 in N launches of a kernel; 0: all."),
    click.option("--line-info/--no-line-info", default=False, show_default=True,
                 help="Source lines; needs code built with them."),
    click.option("--max-errors", type=click.IntRange(min=0), default=0, show_default=True, help="Stop after N lines."),
    click.option("--histogram", is_flag=True, help="Ranges of exponents; a pass of its own, as it tears lines."),
    click.option("--bin-spec", type=click.Path(path_type=Path), help="JSON file of exponent bins."),
    click.option("--only-kernel", "only_kernels", multiple=True, help="Exact short name; repeatable."),
    click.option("--not-kernel", "not_kernels", multiple=True, help="Exact short name to leave alone; repeatable."),
    click.option("--fun-detail", is_flag=True, help="Full names of kernels on repeats."),
    click.option("--attach", type=click.Choice(["auto", "inject", "preload"]), default="auto", show_default=True,
                 help="CUDA_INJECTION64_PATH, LD_PRELOAD, or the one after the other."),
)  # fmt: skip


def _with(*knobs: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for knob in reversed(knobs):
            function = knob(function)
        return function

    return decorate


@click.command("nan")
@_with(*KNOBS, *WATCH_KNOBS)
@click.pass_context
def nan(ctx: click.Context, /, experiment: tuple[str, ...], **knobs: Any) -> None:
    """Watch what every module takes and gives: baseline, bfloat16, attention_scale, ..., priority or all."""
    _drive(ctx, experiment, {**knobs, "sass": False})


@click.command("nixnan")
@_with(*KNOBS, *NIXNAN_KNOBS)
@click.pass_context
def nixnan(ctx: click.Context, /, experiment: tuple[str, ...], **knobs: Any) -> None:
    """The same experiments under nixnan.so, instruction by instruction. NIXNAN_SO names the one that you built."""
    from lab.rooms.nan.runner import read_bin_spec

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
    _drive(ctx, experiment, {**knobs, "sass": True, "nixnan": tool})


def _drive(ctx: click.Context, experiment: tuple[str, ...], knobs: dict[str, Any]) -> None:
    import msgspec

    from lab.drive import drive
    from lab.rooms import Plan, Site
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

    drive("nan", make_plan, options)
