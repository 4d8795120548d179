"""The options of `lab run`, in the order of its --help, and the values that they make."""

from __future__ import annotations

import os
from typing import Any

import click

from lab.core.options import Options, SlurmOptions
from lab.errors import UsageError
from lab.gpus.environment import parse_variable
from lab.terminal.options import ABOVE_ZERO, ONE_OR_MORE, PATH

COMMON = (
    click.Option(
        ["--image"],
        metavar="NAME|REF",
        help="Run in this image: cuda, pascal, rocm70, cpu, or any by reference. [default: here]",
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
        ["--env"],
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Set a variable for every step; NAME alone passes yours into containers. Repeatable.",
    ),
    click.Option(
        ["--mount", "mounts"],
        multiple=True,
        metavar="SRC[:DST[:ro]]",
        help="A folder or file of yours in containers, at its own path or DST. Repeatable.",
    ),
    click.Option(
        ["--vendor"],
        type=click.Choice(["nvidia", "amd", "none"]),
        help="Vendor of the GPUs, where no image says it.",
    ),
    click.Option(["--detach"], is_flag=True, help="Return at once; the run goes on: see lab runs logs."),
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
        help="How a node runs --image; pyxis and apptainer, which were never run, with --experimental.",
    ),
    click.Option(["--experimental"], is_flag=True, help="Allow what was never run."),
)


def _absolute(text: str) -> str:
    source, colon, target = text.partition(":")
    path = os.path.abspath(os.path.expanduser(source)) if source else ""
    return f"{path}{colon}{target}"


def make_options(as_json: bool = False, **flags: Any) -> Options:
    """The flags as values. Raises UsageError for an option of Slurm without --engine slurm."""
    flags["env"] = tuple(map(parse_variable, flags.get("env", ())))
    flags["mounts"] = tuple(map(_absolute, flags.get("mounts", ())))
    if flags["engine"] == "slurm":
        slurm = SlurmOptions(**{name: flags.pop(name) for name in SlurmOptions.__struct_fields__})
        return Options(json=as_json, slurm=slurm, **flags)
    for option in SLURM:
        value = flags[option.name] if option.name in Options.__struct_fields__ else flags.pop(option.name)
        if value not in (None, (), "none", False):
            raise UsageError(f"{option.opts[0]} is an option of the slurm engine", fix="add --engine slurm")
    return Options(json=as_json, **flags)
