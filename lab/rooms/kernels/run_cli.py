"""`lab run kernels`: profile, replay, energy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.rooms.kernels.cli import RANK, SOURCE
from lab.terminal.options import Finite, choice, option, options_of, seed

if TYPE_CHECKING:
    from lab.core.plan import Experiment, Plan, Site


@click.command("profile")
@click.argument("model", required=False)
@click.option(
    "--model",
    "named",
    metavar="MODEL",
    help="Same as the argument: bloom-560m, vicuna-7b, tiny-bloom, tiny-llama, a hub id, or a folder. "
    "[default: bloom-560m with GPUs, tiny-bloom without]",
)
@option(
    "--tp",
    type=click.IntRange(min=1),
    default=1,
    help="Tensor parallel ranks, one GPU each.",
)
@click.option("--prompt", default="", help="[default: the one published with the model]")
@option("--max-new-tokens", type=click.IntRange(min=1), default=64, help="Tokens to generate.")
@click.option(
    "--fixed-tokens", is_flag=True, help="Continue past an end-of-text token. [always with random weights]"
)
@option(
    "--record-shapes/--no-record-shapes",
    default=True,
    help="Shapes of every op in the trace.",
)
@click.option(
    "--trace",
    "trace_copy",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Copy the trace there, too; of several ranks to FILE with _rank0, _rank1 ... before its suffix.",
)
@click.option(
    "--shape-log",
    "shapes_copy",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every distinct call of a Linear there, too: JSON lines with module, in_shape, out_shape, "
    "dtype, phase, count.",
)
@choice(
    "--weights",
    "auto checkpoint random",
    "auto: the checkpoint if `lab fetch` has downloaded it, otherwise random.",
)
@choice("--dtype", "auto float16 bfloat16 float32", "auto: float16 on a GPU, float32 on a CPU.")
@choice("--attn", "auto eager sdpa", "Attention implementation.")
@click.option("--8bit", "eight_bit", is_flag=True, help="8-bit weights (bitsandbytes, torch 2.3 or newer).")
@seed(0, "Seed of random weights.")
@click.pass_context
def profile(
    ctx: click.Context,
    /,
    model: str | None,
    named: str | None,
    trace_copy: Path | None,
    shapes_copy: Path | None,
    **knobs: Any,
) -> Experiment:
    """Generate text with every forward marked: Kineto trace, execution trace, recorder, shapes; one file per
    rank.

    \b
    lab run --image cuda kernels profile bloom-560m
    lab run --image cuda kernels profile vicuna-7b --tp 2
    lab run --image pascal kernels profile bloom-560m
    lab run kernels profile --model bigscience/bloom-560m --trace trace.json --shape-log shapes.jsonl
    """
    from lab.core.plan import Experiment
    from lab.errors import UsageError
    from lab.rooms.kernels.config import KernelsConfig
    from lab.rooms.kernels.cures import host_env
    from lab.rooms.kernels.plan import plan
    from lab.rooms.kernels.trails import copy_files, refuse_targets

    if model and named and model != named:
        raise UsageError(f"two models named: {model} and {named}", fix="name only one")
    refuse_targets(trace_copy, shapes_copy)
    options = options_of(ctx)

    def make_plan(site: Site, root: Path) -> Plan:
        chosen = model or named or ("bloom-560m" if site.gpus else "tiny-bloom")
        # The step works in the run's folder, where a relative path would name another one.
        chosen = str(Path(chosen).resolve()) if Path(chosen).is_dir() else chosen
        return plan(KernelsConfig(model=chosen, **knobs), site, image=options.image, env=host_env())

    return Experiment(
        "kernels", make_plan, options, on_success=lambda root: copy_files(root, trace_copy, shapes_copy)
    )


@click.command("replay")
@SOURCE
@click.option(
    "--mode",
    type=click.Choice(["hot", "cold", "in-order"]),
    default="in-order",
    show_default=True,
    help="hot: same buffers again; cold: L2 overwritten before; in-order: the whole recording again.",
)
@option(
    "--repeats",
    type=click.IntRange(min=1, max=1000),
    default=10,
    help="Measurements of every call.",
)
@RANK
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    source: Path,
    execution_trace: Path | None,
    rank: int,
    **knobs: Any,
) -> Experiment:
    """Replay every op of SOURCE (a RUN or a Kineto trace), and prove that its kernels are the same.

    Prints coverage by launches and by time, the share of kernel time that replays as the same kernel, the
    error of each kernel's time, and how far the sum of replayed times is off the recorded one.
    """
    from lab.core.plan import Experiment
    from lab.rooms.kernels.plan import replay_run
    from lab.rooms.kernels.replay.calls.source import read_source

    plan = read_source(source, execution_trace, rank)

    def make_plan(site: Site, root: Path) -> Plan:
        return replay_run(plan, site=site, **knobs)

    return Experiment("kernels", make_plan, options_of(ctx))


@click.command("energy")
@SOURCE
@option("--window", "window_s", type=Finite(min=0.1), default=5.0, help="Seconds per window.")
@option("--windows", type=click.IntRange(min=1), default=3, help="Windows of every call, interleaved.")
@option(
    "--preroll",
    "preroll_s",
    type=Finite(min=0),
    default=1.0,
    help="Seconds of load before a window: the ramp.",
)
@option(
    "--idle",
    "idle_s",
    type=Finite(min=0.5),
    default=5.0,
    help="Seconds of idle, cold and with a context.",
)
@option(
    "--coverage",
    type=Finite(min=0, max=1, min_open=True),
    default=0.95,
    help="Share of recorded GPU time whose calls are measured; measured calls stand in for the rest.",
)
@option(
    "--most-calls", type=click.IntRange(min=1), default=40, help="Measure at most this many distinct calls."
)
@click.option("--no-model", is_flag=True, help="Skip the model's own run; without it no closure.")
@RANK
@click.pass_context
def energy(
    ctx: click.Context, /, source: Path, execution_trace: Path | None, no_model: bool, rank: int, **knobs: Any
) -> Experiment:
    """Measure joules per launch, per distinct call and per token of SOURCE (a RUN or a Kineto trace).

    Also measures the model's own runs, and compares the sum of the parts with them.
    """
    import msgspec

    from lab.core.plan import Experiment
    from lab.rooms.kernels.energy.choice import EnergyConfig
    from lab.rooms.kernels.plan import energy_run
    from lab.rooms.kernels.replay.calls.source import read_source

    plan = read_source(source, execution_trace, rank)
    config = msgspec.convert({**knobs, "model_run": not no_model}, EnergyConfig)

    def make_plan(site: Site, root: Path) -> Plan:
        return energy_run(plan, config, site)

    return Experiment("kernels", make_plan, options_of(ctx))
