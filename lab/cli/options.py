"""The options of `lab run`, in the order of its --help, and the values that they make."""

from __future__ import annotations

from typing import Any

import click

from lab.core.options import Options, SlurmOptions
from lab.errors import UsageError
from lab.terminal.options import ABOVE_ZERO, ONE_OR_MORE, PATH

COMMON = (
    click.Option(
        ["--image"], metavar="NAME", help="Run in this image: cuda, pascal, rocm70 or cpu. [default: here]"
    ),
    click.Option(
        ["--gpus"],
        default="all",
        show_default=True,
        help="all, none, a count, 0,2 or 0-3, 0:1 (MIG), UUIDs or CDI names.",
    ),
    click.Option(["-o", "--output-dir"], type=PATH, help="Run folder. [default: experiments/ROOM_TIME]"),
    click.Option(["-n", "--dry-run"], is_flag=True, help="Print exactly what would run, and run nothing."),
    click.Option(
        ["--resume", "resume_run"],
        type=PATH,
        metavar="RUN",
        help="Instead of an experiment: run what is missing or failed of this run, after following what "
        "still runs of it.",
    ),
    click.Option(["--json", "as_json"], is_flag=True, help="Results (or the plan) as JSON on stdout."),
    click.Option(["-q", "--quiet"], is_flag=True, help="Hide the steps' own output."),
)
FURTHER = (
    click.Option(
        ["--engine"],
        type=click.Choice(["local", "docker", "slurm"]),
        help="[default: docker with --image, else local]",
    ),
    click.Option(["-j", "--jobs"], type=ONE_OR_MORE, default=1, show_default=True, help="Steps at a time."),
    click.Option(["--timeout", "timeout_s"], type=ABOVE_ZERO, help="Time limit of a step, s."),
    click.Option(
        ["--stall-timeout", "stall_timeout_s"],
        type=ABOVE_ZERO,
        help="Stop a step that prints nothing for this long, s; ranks first dump what they wait for.",
    ),
    click.Option(
        ["--wait/--no-wait"], default=True, help="Wait for GPUs that another process holds. [default: yes]"
    ),
    click.Option(
        ["--analysis"],
        type=click.Choice(["auto", "host", "none"]),
        default="auto",
        show_default=True,
        help="Where to analyse after the steps; auto: in the cpu image if they ran in containers, else here.",
    ),
    click.Option(
        ["--host-lab"],
        type=click.Choice(["auto", "mount", "refuse"]),
        default="auto",
        show_default=True,
        help="If the image holds a different lab: auto mounts a checkout, and refuses an installed one.",
    ),
)
SLURM = (
    click.Option(
        ["--sbatch", "extra"],
        multiple=True,
        metavar="KEY=VALUE",
        help="An option of sbatch, such as partition=gpu, account=physics or mem=64G; repeatable.",
    ),
    click.Option(
        ["--time", "time_min"],
        type=ONE_OR_MORE,
        help="Time limit of a job, min. [default: the step's plus 10]",
    ),
    click.Option(
        ["--container"],
        type=click.Choice(["none", "docker", "pyxis", "apptainer"]),
        default="none",
        show_default=True,
        help="How a node runs --image. pyxis and apptainer were built from their manuals and never run.",
    ),
    click.Option(
        ["--vendor"],
        type=click.Choice(["nvidia", "amd", "none"]),
        help="Vendor of the nodes' GPUs, where no --image says it.",
    ),
    click.Option(
        ["--detach"],
        is_flag=True,
        help="Submit and return; a job after the steps collects and analyses.",
    ),
)


def _answer_removed(_ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise UsageError(
            "sbatch's own options were removed from `lab run`", fix="--sbatch KEY=VALUE, as partition=gpu"
        )


# For one release.
REMOVED_OPTION = click.Option(
    ["--partition", "--account", "--qos", "--constraint", "--cpus-per-task", "--mem", "--gres"],
    hidden=True,
    expose_value=False,
    callback=_answer_removed,
    help="Now --sbatch KEY=VALUE.",
)


def make_options(as_json: bool = False, **flags: Any) -> Options:
    """The flags as values. Raises UsageError for an option of Slurm without --engine slurm."""
    if flags["engine"] == "slurm":
        slurm = SlurmOptions(**{name: flags.pop(name) for name in SlurmOptions.__struct_fields__})
        return Options(json=as_json, slurm=slurm, **flags)
    for option in SLURM:
        value = flags[option.name] if option.name in Options.__struct_fields__ else flags.pop(option.name)
        if value not in (None, (), "none", False):
            raise UsageError(f"{option.opts[0]} is an option of the slurm engine", fix="add --engine slurm")
    return Options(json=as_json, **flags)
