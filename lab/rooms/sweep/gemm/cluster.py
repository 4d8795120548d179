"""`lab gemm part` and `lab gemm spread`: the pipeline as Slurm jobs, one task per configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.core.words import plural
from lab.errors import needs
from lab.rooms.sweep.gemm.options import COMMON, PLACE, SALVAGE, TOP_K
from lab.rooms.sweep.gemm.session import Session
from lab.terminal.click_types import with_options
from lab.terminal.options import option

if TYPE_CHECKING:
    from lab.rooms.sweep.gemm.places import Places


@click.command()
@with_options(
    *PLACE,
    click.option(
        "--number", type=click.IntRange(min=0), required=True, help="Number of the configuration, from 0."
    ),
    SALVAGE,
    *COMMON,
)
def part(sweep: Path, number: int, salvage: bool, **shared: Any) -> None:
    """One configuration's share of `spread`: read its traces into the cache, merge them into one timeline."""
    with needs("analysis"):
        from lab.rooms.sweep.gemm.steps import read_part

    session = Session(sweep, **shared)
    session.finish(read_part(session.places, number, workers=session.workers, salvage=salvage))


@click.command()
@with_options(
    *PLACE,
    TOP_K,
    SALVAGE,
    click.option("--partition", help="Slurm partition. [default: the site's]"),
    option("--cpus-per-task", type=click.IntRange(min=1), default=8, help="CPUs of each task."),
    option(
        "--time",
        "time_min",
        type=click.IntRange(min=1),
        default=120,
        help="Time limit of a task, min.",
    ),
    click.option("--mem", help="Memory of each task, such as 32G."),
    option("-j", "--jobs", type=click.IntRange(min=1), default=100, help="Tasks at a time."),
    click.option(
        "--sbatch",
        "extra",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any other option of sbatch, such as account or qos.",
    ),
)
def spread(
    sweep: Path,
    out: Path | None,
    in_place: bool,
    top_k: int,
    salvage: bool,
    jobs: int,
    cpus_per_task: int,
    **slurm_options: Any,
) -> None:
    """`all` on a Slurm cluster: one task per configuration, then one job that puts their results together."""
    from lab.core.options import SlurmOptions
    from lab.engines.slurm.submission import submit_commands
    from lab.rooms.sweep.gemm.places import places
    from lab.rooms.sweep.gemm.steps import num_parts

    where = places(sweep, out, in_place=in_place)
    flags = [str(sweep.absolute()), *_target(where, out, in_place)]
    flags += ["--workers", str(cpus_per_task), *(["--salvage"] if salvage else [])]
    parts = [["gemm", "part", *flags, "--number", str(number)] for number in range(num_parts(sweep))]
    last = ["gemm", "all", *flags, "--top-k", str(top_k), "--keep-merged"]
    slurm = SlurmOptions(cpus_per_task=cpus_per_task, **slurm_options)
    array, end = submit_commands(where.home, slurm, parts, last, jobs=jobs)
    click.echo(
        f"submitted {plural(len(parts), 'task')} as {array}, and {end} to put their results together: "
        f"results in {where.analysis}, output in {where.home}/.slurm"
    )


def _target(where: Places, out: Path | None, in_place: bool) -> list[str]:
    """The flags that make every task write where this command would."""
    if out:
        return ["--out", str(out.absolute())]
    if in_place or where.home == where.sweep:
        return ["--in-place"]
    return ["--out", str(where.analysis.absolute())]
