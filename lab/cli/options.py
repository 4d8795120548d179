"""The flags of `lab run`, in the order of its --help, and the Options that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lab.core.options import Options, SlurmOptions
from lab.engines import ENGINES
from lab.errors import UsageError
from lab.terminal.click_types import Decorator
from lab.terminal.options import as_json, choice, option, quiet

UNSET = (None, (), "none", False)
PLACE: list[Decorator] = [
    click.option(
        "--image", metavar="NAME", help="Run in this image: cuda, pascal, rocm70 or cpu. [default: here]"
    ),
    click.option(
        "--engine",
        type=click.Choice([name for name in ENGINES if name != "mixed"]),
        help="[default: docker with --image, else local]",
    ),
]
SLURM: list[Decorator] = [
    click.option("--partition", help="[Slurm] Where to queue the steps. [default: the site's]"),
    click.option("--account", help="[Slurm] Account to charge."),
    click.option("--qos", help="[Slurm] Quality of service."),
    click.option("--constraint", help="[Slurm] Features that a node must have."),
    click.option(
        "--time",
        "time_min",
        type=click.IntRange(min=1),
        help="[Slurm] Time limit of a job, min. [default: the step's plus 10]",
    ),
    click.option("--cpus-per-task", type=click.IntRange(min=1), help="[Slurm] CPUs on each node."),
    click.option("--mem", help="[Slurm] Memory on each node, for example 64G."),
    click.option("--gres", help="[Slurm] Instead of gpu:N, for example gpu:h100:8."),
    click.option(
        "--sbatch", "extra", multiple=True, metavar="KEY=VALUE", help="[Slurm] Any other option of sbatch."
    ),
    choice(
        "--container",
        "none docker pyxis apptainer",
        "[Slurm] How a node runs --image. pyxis and apptainer were built from their manuals and never run.",
    ),
    click.option(
        "--vendor",
        type=click.Choice(["nvidia", "amd", "none"]),
        help="[Slurm] Vendor of the nodes' GPUs, where no --image says it.",
    ),
    click.option(
        "--detach",
        is_flag=True,
        help="[Slurm] Submit and return; a job after the steps collects and analyses.",
    ),
]
KNOBS: list[Decorator] = [
    option("--gpus", default="all", help="all, none, a count, 0,2 or 0-3, 0:1 (MIG), UUIDs or CDI names."),
    option("-j", "--jobs", type=click.IntRange(min=1), default=1, help="Steps at a time."),
    click.option("-n", "--dry-run", is_flag=True, help="Print exactly what would run, and run nothing."),
    as_json("Results (or the plan)"),
    click.option(
        "-o",
        "--output-dir",
        type=click.Path(path_type=Path),
        help="Run folder. [default: experiments/ROOM_TIME]",
    ),
    click.option(
        "--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), help="Time limit of a step, s."
    ),
    click.option(
        "--stall-timeout",
        "stall_timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        help="Stop a step that prints nothing for this long, s; ranks first dump what they wait for.",
    ),
    choice(
        "--analysis",
        "auto host none",
        "Where to analyse after the steps; auto: in the cpu image if they ran in containers, else here.",
    ),
    choice(
        "--host-lab",
        "auto mount refuse",
        "If the image holds a different lab: auto mounts a checkout, and refuses an installed one.",
    ),
    click.option(
        "--wait/--no-wait", default=True, help="Wait for GPUs that another process holds. [default: yes]"
    ),
    quiet("Hide the steps' own output."),
]
EARLIER: list[Decorator] = [
    click.option(
        "--resume",
        "resume_run",
        type=click.Path(path_type=Path),
        metavar="RUN",
        help="Run what is missing or failed of this run.",
    ),
    click.option(
        "--attach",
        "attach_run",
        type=click.Path(path_type=Path),
        metavar="RUN",
        help="Follow this run's containers, which outlived a killed driver, then continue the run.",
    ),
]
BOTH: list[Decorator] = [
    click.option(
        "--repeat-both",
        nargs=2,
        metavar="BASE HEAD",
        help="Instead of an experiment: run the program after -- on both sides (git revisions, folders, "
        "image:NAME) in fresh processes, interleaved, until `lab check` can decide.",
    ),
    option("--max-slowdown", default="2%", help="With --repeat-both: the largest slowdown that passes."),
]


def make_options(as_json: bool = False, **flags: Any) -> Options:
    """The flags as values. Raises UsageError for an option of an engine that was not asked for."""
    engine = flags.get("engine")
    slurm = {name: flags.pop(name) for name in SlurmOptions.__struct_fields__ if name in flags}
    of_slurm = {**slurm, "detach": flags.get("detach"), "vendor": flags.get("vendor")}
    set_flags = [option for option, value in of_slurm.items() if value not in UNSET]
    if set_flags and engine != "slurm":
        raise UsageError(
            f"--{_flag(set_flags[0])} is an option of the slurm engine", fix="add --engine slurm"
        )
    return Options(json=as_json, slurm=SlurmOptions(**slurm) if engine == "slurm" else None, **flags)


def _flag(name: str) -> str:
    return {"time_min": "time", "extra": "sbatch"}.get(name, name).replace("_", "-")
