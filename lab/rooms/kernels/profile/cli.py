"""`lab run kernels profile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.terminal.options import choice, option, options_of, seed

if TYPE_CHECKING:
    from lab.core.plan import Experiment


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
@click.option("--no-shape-log", is_flag=True, help="Do not record the calls of Linears.")
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
    no_shape_log: bool,
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
    from lab.core.plan import Experiment, Plan, Site
    from lab.errors import UsageError
    from lab.rooms.kernels.config import KernelsConfig
    from lab.rooms.kernels.cures import host_env
    from lab.rooms.kernels.plan import plan
    from lab.rooms.kernels.profile.copies import copy_files, refuse_targets

    if model and named and model != named:
        raise UsageError(f"two models named: {model} and {named}", fix="name only one")
    if no_shape_log and shapes_copy:
        raise UsageError("--shape-log and --no-shape-log exclude each other", fix="drop one of them")
    refuse_targets(trace_copy, shapes_copy)
    options = options_of(ctx)
    knobs["shape_log"] = not no_shape_log

    def make_plan(site: Site, root: Path) -> Plan:
        chosen = model or named or ("bloom-560m" if site.gpus else "tiny-bloom")
        # The step works in the run's folder, where a relative path would name another one.
        chosen = str(Path(chosen).resolve()) if Path(chosen).is_dir() else chosen
        return plan(KernelsConfig(model=chosen, **knobs), site, image=options.image, env=host_env())

    return Experiment(
        "kernels", make_plan, options, on_success=lambda root: copy_files(root, trace_copy, shapes_copy)
    )
