"""`lab run nsys` records; `lab nsys` reads captures, lab's own and others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.terminal.group import LazyGroup
from lab.terminal.options import Finite, choice, option, options_of, seed, with_options

if TYPE_CHECKING:
    from lab.core.plan import Experiment

CELLS = with_options(
    click.option(
        *("-p", "--part", "parts"),
        metavar="a,b,...",
        help="Questions to answer: a to e, or all (four contexts each).",
    ),
    click.option(
        *("--model-size", "model_sizes"),
        metavar="SIZE,...",
        help="small, medium, large, xl, 2.7B, tiny or all. [default: all five with GPUs; tiny without]",
    ),
    click.option(
        *("--context-length", "context_lengths"),
        metavar="N,...",
        help="Tokens. [default: 512 with GPUs, 128 without]",
    ),
    click.option(
        *("--profile-type", "profile_types"),
        metavar="TYPE,...",
        help="forward, forward_backward, training. [default: what the parts need]",
    ),
)
WORKLOAD = with_options(
    option("--batch-size", type=click.IntRange(min=1), default=4, help="Sequences per pass."),
    option("--warmup-steps", type=click.IntRange(min=0), default=5, help="Steps before recording."),
    option("--measure-steps", type=click.IntRange(min=1), default=10, help="Recorded steps."),
    option(
        *("--use-annotated-attention/--plain-attention", "annotated_attention"),
        default=True,
        help="Ranges inside attention (part e needs them).",
    ),
    choice("--softmax", "plain fused", "The course's softmax of five kernels, or torch's of one."),
    click.option("--fused-qkv", is_flag=True, help="One GEMM for query, key and value."),
    choice("--dtype", "fp32 tf32 bf16 fp16", "Type of the matrix products; bf16 and fp16 by autocast."),
    seed(0, "Seed of weights and tokens."),
)


@click.command("nsys")
@CELLS
@WORKLOAD
@choice("--collector", "auto nsys kineto", "auto: nsys where it works, else torch.profiler.")
@option("--twin/--no-twin", default=True, help="Time the same steps without a profiler too.")
@click.option("--keep-original", is_flag=True, help="Keep the .nsys-rep: it holds the process's environment.")
@option(
    *("--pause", "pause_s"),
    type=Finite(min=0),
    default=1.0,
    help="Pause in seconds before each process on GPUs.",
)
@click.option("-s", "--skip-existing", is_flag=True, help="Skip cells whose results are in --output-dir.")
@click.pass_context
def run_nsys(ctx: click.Context, /, **flags: Any) -> Experiment:
    """Profile Transformers of five sizes, and answer questions a to e from what was recorded."""
    import msgspec

    from lab.core.plan import Experiment, Plan, Site
    from lab.rooms.nsys.plan import plan

    skip_existing = flags.pop("skip_existing")
    config = config_of(flags)

    def make_plan(site: Site, root: Path) -> Plan:
        return plan(config, site, root, skip_existing=skip_existing)

    options = msgspec.structs.replace(options_of(ctx), skip_existing=skip_existing)
    return Experiment("nsys", make_plan, options)


def config_of(flags: dict[str, Any]) -> Any:
    """The flags as an NsysConfig. Raises UsageError for an unknown part, size, type or number."""
    import msgspec

    from lab.rooms.nsys import config
    from lab.terminal.options import parse_int_list

    readers: dict[str, Callable[[Any], Any]] = {
        "parts": config.parse_parts,
        "model_sizes": config.parse_sizes,
        "context_lengths": parse_int_list,
        "profile_types": config.parse_types,
    }
    values = {
        name: tuple(readers[name](value)) if name in readers else value
        for name, value in flags.items()
        if value or name not in readers
    }
    workload = {name: values.pop(name) for name in config.WorkloadConfig.__struct_fields__}
    return msgspec.convert({"workload": workload, **values}, config.NsysConfig)


COMMANDS = {
    "summary": (
        "lab.rooms.nsys.captures.cli:summary",
        "Phases, kernel classes, GPU busy and idle time of one capture.",
    ),
    "stats": ("lab.rooms.nsys.captures.cli:stats", "The reports of `nsys stats`, computed without nsys."),
    "answers": ("lab.rooms.nsys.answers.cli:answers", "Questions a to e of a run, each with its checks."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def nsys() -> None:
    """Read a recording of any profiler: its phases, the reports of `nsys stats`, answers.

    `lab run nsys` records and analyses new ones.
    """
