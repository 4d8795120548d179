"""`lab runs`: list, show, stop, reap."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import click

from lab.core.manifest import Manifest
from lab.core.run import Run
from lab.core.run_folder import list_runs
from lab.core.words import plural, printable
from lab.driver.detached import follow_logs, goes_on
from lab.driver.drive import stop_run
from lab.driver.show import raise_for_steps
from lab.errors import BadDataError, LabError, not_here
from lab.terminal.console import Console
from lab.terminal.group import Group
from lab.terminal.options import as_json, print_json

DEFAULT = Path("experiments")  # missing before the first run


@click.group(cls=Group)
def runs() -> None:
    """List, show, stop and clean up runs."""


@runs.command("list")
@click.argument("folder", type=click.Path(path_type=Path), default=DEFAULT)
@as_json("One object per run")
def runs_list(folder: Path, as_json: bool) -> None:
    """List the runs in FOLDER (default: experiments), one line per run. Exit code 5: one cannot be read."""
    if not folder.is_dir() and folder != DEFAULT:
        raise not_here("no such folder", folder, "name the folder that holds the runs")
    manifests = list_runs(folder)
    if as_json:
        rows = [
            {"folder": str(path), "error": str(m)}
            if isinstance(m, LabError)
            else {"folder": str(path), "room": m.room, "created_utc": m.created_utc, "steps": _counts(m)}
            for path, m in manifests
        ]
        print_json(rows)
    for path, manifest in () if as_json else manifests:
        if isinstance(manifest, LabError):
            _say(f"{path}  unreadable: {manifest.problem}")
        else:
            image = manifest.image.name if manifest.image else manifest.engine
            _say(f"{path}  {manifest.created_utc[:19]}  {image}  {_counts_text(manifest)}")
    if not manifests:
        click.echo(f"no runs in {folder} (folders below it are not searched)", err=True)
    if unreadable := [path for path, manifest in manifests if isinstance(manifest, LabError)]:
        raise BadDataError(
            f"{len(unreadable)} of {plural(len(manifests), 'run')} cannot be read",
            location=unreadable[0],
            fix=f"lab runs show {shlex.quote(str(unreadable[0]))} says why",
        )


@runs.command("logs")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--step", metavar="NAME", help="Only the output of this step.")
def runs_logs(folder: Path, follow: bool, step: str | None) -> None:
    """Print what a run has printed: its driver's lines with --detach, else each step's output.

    Exit code with -f: 0 if every step ended well, 1 otherwise.
    """
    run = Run.open(folder)
    for line in follow_logs(run, step, follow):
        click.echo(printable(line))
    if follow:
        raise_for_steps(Run.open(folder))


@runs.command("stop")
@click.argument("folder", type=click.Path(path_type=Path))
def runs_stop(folder: Path) -> None:
    """End a run from outside: its driver as Ctrl-C would, then all that it left. It can be resumed."""
    stop_run(folder, Console())


@runs.command("reap")
@click.option("--running", is_flag=True, help="Also those that still run.")
@click.option("--slurm-job", metavar="ID", help="Only those of this job, running or not: for an Epilog.")
def runs_reap(running: bool, slurm_job: str | None) -> None:
    """Remove containers of lab whose driver is dead and whose result will not be collected."""
    from lab.engines.docker.leftovers import reap

    removed = reap(running=running, slurm_job=slurm_job)
    for container in removed:
        click.echo(
            f"removed {container.name} ({container.state}, run {container.run_dir}, step {container.step})"
        )
    click.echo(f"{len(removed)} removed", err=True)


@runs.command("show")
@click.argument("folder", type=click.Path(path_type=Path))
@as_json("The manifest itself")
def runs_show(folder: Path, as_json: bool) -> None:
    """Show what a run is, and the outcome of each step."""
    run = Run.open(folder)
    manifest = run.manifest
    if as_json:
        print_json(manifest)
        return
    _say(f"{manifest.id}: room {manifest.room}, {manifest.kind.value}, {manifest.created_utc}")
    _say(
        f"engine {manifest.engine}, image {manifest.image.ref if manifest.image else 'none'}, "
        f"lab {manifest.lab.version} {manifest.lab.commit or ''}"
    )
    for gpu in manifest.gpus:
        _say(f"GPU {gpu.index}: {gpu.name} {gpu.uuid} driver {gpu.driver}")
    in_work = "running" if goes_on(run) else "unfinished, and nothing drives it: lab run --resume"
    for record in manifest.steps:
        outcome = record.outcome
        state = in_work if record.attempts else "planned"
        if outcome:
            state = f"{outcome.status.value:12} {outcome.seconds:8.1f} s  {outcome.reason}"
        _say(f"  {record.step.name:24} {state}".rstrip())


def _say(line: str) -> None:
    """Print a line without escapes or breaks, which a folder's name or a manifest may contain."""
    click.echo(printable(line.replace("\n", "\\n")))


def _counts(manifest: Manifest) -> Counter[str]:
    return Counter(
        record.outcome.status.value if record.outcome else "unfinished" if record.attempts else "planned"
        for record in manifest.steps
    )


def _counts_text(manifest: Manifest) -> str:
    counts = _counts(manifest)
    finished = counts["ok"] + counts["skipped"]
    open_or_bad = [f"{n} {word}" for word, n in counts.items() if word not in ("ok", "skipped")]
    return ", ".join([f"{manifest.room}: {finished}/{len(manifest.steps)} done", *open_or_bad])
