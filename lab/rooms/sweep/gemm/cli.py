"""`lab gemm`: the GEMM-variance pipeline, step by step or in one go."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lab.core.run import Run
from lab.errors import StepFailed, needs
from lab.terminal.click_types import with_options
from lab.terminal.console import Console

SWEEP = click.argument("sweep", type=click.Path(path_type=Path))
OUT = click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Analysis folder. [default: SWEEP/tracelens_analysis for a run of lab; for a recording that lab "
    "did not make, experiments/NAME_analysis/tracelens_analysis]",
)
IN_PLACE = click.option("--in-place", is_flag=True, help="Write into SWEEP even if lab did not make it.")
WORKERS = click.option(
    "-w", "--workers", type=click.IntRange(min=1), help="Processes. [default: one per CPU, at most 8]"
)
SALVAGE = click.option("--salvage", is_flag=True, help="Use the readable part of truncated traces.")
QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress.")
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Files, findings and what lacks as JSON on stdout."
)
TOP_K = click.option(
    "-k",
    "--top-k",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="GEMMs per trace in the list.",
)
PLACE = [SWEEP, OUT, IN_PLACE]
COMMON = [WORKERS, QUIET, JSON]


@click.group()
def gemm() -> None:
    """Why GEMM times vary: reports, variance, overlap with collectives, cause, plots, merged traces.

    SWEEP is a sweep, a folder of ranks, or one trace. A run of lab gets its analysis inside; any other recording is
    left as it is and analysed into experiments/NAME_analysis, unless --out or --in-place says otherwise.
    """


@gemm.command("all")
@with_options(
    *PLACE,
    TOP_K,
    SALVAGE,
    click.option("--fresh", is_flag=True, help="Do it again even if nothing has changed."),
    click.option("--keep-merged", is_flag=True, help="Leave merged traces that are there as they are."),
    *COMMON,
)
def everything(sweep: Path, top_k: int, salvage: bool, fresh: bool, keep_merged: bool, **shared: Any) -> None:
    """Every step in one go, each trace read once; nothing is done where nothing has changed since the last time."""
    from lab.rooms.sweep.gemm.memo import key_of, memo_of, recall, remember

    session = Session(sweep, **shared)
    key = key_of(sweep, {"top_k": top_k, "salvage": salvage, "home": str(session.places.home.absolute())})
    known = None if fresh else recall(session.places, key)
    if known:
        session.console.detail("nothing has changed since the last time; --fresh does it all again")
        _finish(
            known,
            session.places.analysis,
            files=[session.places.home / name for name in known.files],
            as_json=shared["as_json"],
        )
        return
    with needs("analysis"):
        from lab.rooms.sweep.gemm.steps import run_all, summed
    data = session.read(salvage=salvage, workbooks=True)
    done = summed(
        run_all(
            session.places,
            data,
            top_k=top_k,
            workers=session.workers,
            salvage=salvage,
            keep_merged=keep_merged,
        )
    )
    remember(session.places, key, memo_of(session.places, done))
    session.finish(done)


@gemm.command()
@with_options(
    *PLACE,
    click.option("--number", type=click.IntRange(min=0), required=True, help="Which, from 0."),
    SALVAGE,
    *COMMON,
)
def part(sweep: Path, number: int, salvage: bool, **shared: Any) -> None:
    """One configuration's share of the work: its traces into the cache and onto one timeline. See `spread`."""
    with needs("analysis"):
        from lab.rooms.sweep.gemm.steps import read_part

    session = Session(sweep, **shared)
    session.finish(read_part(session.places, number, workers=session.workers, salvage=salvage))


@gemm.command()
@with_options(
    *PLACE,
    TOP_K,
    SALVAGE,
    click.option(
        "--partition", help="Slurm's; also account, qos and the like with --sbatch. [default: the site's]"
    ),
    click.option(
        "--cpus-per-task", type=click.IntRange(min=1), default=8, show_default=True, help="CPUs of each task."
    ),
    click.option(
        "--time",
        "time_min",
        type=click.IntRange(min=1),
        default=120,
        show_default=True,
        help="Limit of a task, min.",
    ),
    click.option("--mem", help="Memory of each task, as 32G."),
    click.option(
        "-j", "--jobs", type=click.IntRange(min=1), default=100, show_default=True, help="Tasks at a time."
    ),
    click.option("--sbatch", "extra", multiple=True, metavar="KEY=VALUE", help="Any other option of sbatch."),
)
def spread(
    sweep: Path,
    out: Path | None,
    in_place: bool,
    top_k: int,
    salvage: bool,
    jobs: int,
    cpus_per_task: int,
    **asked: Any,
) -> None:
    """`all` over a Slurm cluster: one task a configuration, and a job after them that puts all together."""
    from lab.core.options import SlurmOptions
    from lab.engines.slurm.engine import submit_parts
    from lab.rooms.sweep.gemm.places import places
    from lab.rooms.sweep.gemm.steps import num_parts

    where = places(sweep, out, in_place=in_place)
    flags = [str(sweep.absolute()), "--out" if out else "--in-place", *([str(out.absolute())] if out else [])]
    flags = (
        flags
        if out or in_place or where.home == sweep
        else [flags[0], "--out", str(where.analysis.absolute())]
    )
    flags += ["--workers", str(cpus_per_task), *(["--salvage"] if salvage else [])]
    parts = [["gemm", "part", *flags, "--number", str(number)] for number in range(num_parts(sweep))]
    last = ["gemm", "all", *flags, "--top-k", str(top_k), "--keep-merged"]
    array, end = submit_parts(
        where.home, SlurmOptions(cpus_per_task=cpus_per_task, **asked), parts, last, jobs=jobs
    )
    click.echo(
        f"{len(parts)} tasks as {array}, put together by {end}: results in {where.analysis}, output in {where.home}/.slurm"
    )


@gemm.command()
@with_options(*PLACE, SALVAGE, *COMMON)
def report(sweep: Path, salvage: bool, **shared: Any) -> None:
    """Excel reports per rank and configuration, and timeline, collectives, effective, stragglers as CSV."""
    with needs("analysis"):
        from lab.rooms.sweep.gemm.workbooks import gemm_report

    session = Session(sweep, **shared)
    data = session.read(salvage=salvage, workbooks=True)
    session.finish(gemm_report(sweep, session.places.analysis, data=data))


@gemm.command()
@with_options(*PLACE, TOP_K, *COMMON)
def variance(sweep: Path, top_k: int, **shared: Any) -> None:
    """The GEMMs whose time varies most -> top5_gemm_kernels_time_variance.csv."""
    with needs("analysis"):
        from lab.rooms.sweep.gemm import variance as module

    session = Session(sweep, **shared)
    session.finish(module.variance(sweep, session.places.analysis, top_k=top_k, data=session.read()))


@gemm.command()
@with_options(*PLACE, TOP_K, *COMMON)
def timestamps(sweep: Path, top_k: int, **shared: Any) -> None:
    """When the extreme instances ran -> ..._with_timestamps.csv."""
    with needs("analysis"):
        from lab.rooms.sweep.gemm import variance as module

    session = Session(sweep, **shared)
    session.finish(module.timestamps(sweep, session.places.analysis, top_k=top_k, data=session.read()))


@gemm.command()
@with_options(*PLACE, TOP_K, *COMMON)
def overlap(sweep: Path, top_k: int, **shared: Any) -> None:
    """Which collectives overlapped them, and what of the variance that explains."""
    with needs("analysis"):
        from lab.rooms.sweep.gemm.steps import overlap_and_cause, summed

    session = Session(sweep, **shared)
    session.finish(summed(overlap_and_cause(session.places, session.read(), top_k=top_k)))


@gemm.command()
@with_options(*PLACE, TOP_K, QUIET, JSON)
def plots(sweep: Path, top_k: int, **shared: Any) -> None:
    """The plots of an analysis that is there -> plots/*.png."""
    with needs("analysis"):
        from lab.rooms.sweep.gemm import plots as module

    session = Session(sweep, **shared)
    session.finish(module.plots(session.places.analysis, top_k=top_k))


@gemm.command()
@with_options(
    *PLACE,
    click.option(
        "--format",
        "form",
        type=click.Choice(["json", "pftrace"]),
        default="json",
        show_default=True,
        help="Chrome's JSON that everybody reads, or Perfetto's own: smaller, opens faster.",
    ),
    click.option("--cpu-ops/--no-cpu-ops", default=True, help="Keep CPU operators. [default: yes]"),
    SALVAGE,
    *COMMON,
)
def merge(sweep: Path, form: str, cpu_ops: bool, salvage: bool, **shared: Any) -> None:
    """All ranks of a configuration on one timeline for Perfetto -> merged_traces/.

    Written beside tracelens_analysis, as SWEEP/merged_traces; with --out, into OUT/merged_traces.
    """
    with needs("analysis"):
        from lab.rooms.sweep.gemm import steps

    session = Session(sweep, **shared)
    session.finish(
        steps.merge(
            session.places,
            form=form,
            cpu_ops=cpu_ops,
            salvage=salvage,
            workers=session.workers,
            progress=session.progress,
        )
    )


@gemm.command()
@click.argument("sweeps", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="A B [C...]")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    default=Path("experiments/comparison"),
    show_default=True,
    help="Folder of sweep_comparison.html and its tables.",
)
@click.option(
    "-l", "--label", "labels", multiple=True, help="Name of each sweep on the page. [default: its folder]"
)
@with_options(*COMMON)
def compare(
    sweeps: tuple[Path, ...],
    out: Path,
    labels: tuple[str, ...],
    workers: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Two or more sweeps side by side on one page; the first is what the others are compared to."""
    with needs("analysis"):
        from lab.rooms.sweep.gemm import compare as module

    console = Console(quiet=quiet)
    done = module.compare(sweeps, out, labels=labels, workers=workers or _cpus(), progress=_teller(console))
    _finish(done, out, files=done.files, as_json=as_json)


class Session:
    """One command's view of its sweep: where to write, how many processes, what to tell."""

    def __init__(
        self,
        sweep: Path,
        *,
        out: Path | None,
        in_place: bool,
        quiet: bool,
        as_json: bool,
        workers: int | None = None,
    ) -> None:
        from lab.rooms.sweep.gemm.places import places

        self.places = places(sweep, out, in_place=in_place)
        self.workers = workers or _cpus()
        self.console = Console(quiet=quiet)
        self.progress = _teller(self.console)
        self._as_json = as_json

    def read(self, *, salvage: bool = False, workbooks: bool = False) -> Any:
        """The sweep in memory; what its manifest expects and is not there has its row."""
        with needs("analysis"):
            from lab.rooms.sweep.findings import expected_rows
            from lab.rooms.sweep.gemm.tables import read_sweep

        sweep = self.places.sweep
        return read_sweep(
            sweep,
            cache=self.places.cache,
            workers=self.workers,
            workbooks=self.places.analysis if workbooks else None,
            salvage=salvage,
            expected=expected_rows(Run.open(sweep) if Run.is_run(sweep) else None),
            progress=self.progress,
        )

    def finish(self, done: Any) -> None:
        _finish(done, self.places.analysis, files=done.files, as_json=self._as_json)


def _finish(done: Any, where: Path, *, files: list[Path], as_json: bool) -> None:
    """Say what was found and written. Raises StepFailed if something that was asked for is not there."""
    if as_json:
        import msgspec

        parts = {name: getattr(done, name) for name in ("findings", "lacking", "problems")}
        click.echo(msgspec.json.encode({**parts, "files": [str(path) for path in files]}).decode())
    else:
        for finding in done.findings:
            click.echo(f"- {finding}")
        for problem in done.problems[:MOST_PROBLEMS]:
            click.echo(f"note: {problem}")
        if len(done.problems) > MOST_PROBLEMS:
            click.echo(f"note: and {len(done.problems) - MOST_PROBLEMS} more (--json lists all)")
        for line in _by_folder(files):
            click.echo(line)
    if done.lacking:
        raise StepFailed(
            "not everything is there:\n" + "\n".join(f"  {line}" for line in done.lacking),
            where=where,
            fix="the rest is analysed; give what is missing and repeat the command",
        )


MOST_PROBLEMS = 12
MOST_FILES = 4


def _by_folder(files: list[Path]) -> list[str]:
    """A line per file, or one for a folder that got many."""
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)
    lines = []
    for folder, found in folders.items():
        few = len(found) <= MOST_FILES
        lines += [f"wrote {path}" for path in found] if few else [f"wrote {len(found)} files into {folder}"]
    return lines


def _teller(console: Console) -> Callable[[int, int, Path], None]:
    def tell(done: int, total: int, path: Path) -> None:
        if done == total or done % 8 == 0:
            console.detail(f"  {done} of {total}: {path.name}")

    return tell


def _cpus() -> int:
    return min(8, len(os.sched_getaffinity(0)))
