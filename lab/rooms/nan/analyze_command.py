"""`lab nan analyze`: one page from a run, from the published layout, or from several runs together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.terminal.options import as_json, out, quiet

if TYPE_CHECKING:
    from lab.core.run import Run


@click.command("analyze")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--sass", is_flag=True, help="Require nixnan's logs: an experiment without one is an error.")
@out("Folder for tables, figures and page. [default: the run; else experiments/NAME_analysis]")
@as_json("The findings")
@quiet()
def analyze(folders: tuple[Path, ...], sass: bool, out: Path | None, as_json: bool, quiet: bool) -> None:
    """Write report.html of a run or of the published layout: ranking, births, layers, instructions, evidence.

    Several runs become one page: `lab nan analyze RUN_OF_NAN RUN_OF_NIXNAN` joins modules and instructions of
    the same experiments. A folder that lab did not make is never written to.
    """
    from lab.core.files import make_folder
    from lab.core.options import Options
    from lab.core.run import home_of
    from lab.errors import needs
    from lab.terminal.console import Console
    from lab.terminal.findings import raise_for_findings, show_findings

    with needs("analysis"):
        from lab.rooms.nan.findings import analyse_nan
    for folder in folders:
        _check_folder(folder)
    runs = [_run_of(folder) for folder in folders]
    joined = folders[0] if len(folders) == 1 else Path("+".join(folder.resolve().name for folder in folders))
    target = out or home_of(joined)
    make_folder(target)
    findings = analyse_nan(folders, target, runs, Console(quiet=quiet).detail, sass=sass)
    show_findings(folders[0], findings, Options(json=as_json))
    raise_for_findings(findings, folders[0])


def _check_folder(folder: Path) -> None:
    from lab.errors import MissingError, not_here

    if folder.is_dir():
        return
    if folder.exists():
        raise MissingError("this is a file, not a folder", location=folder, fix=f"lab nan parse {folder}")
    raise not_here("no such folder", folder, "see `lab runs list`")


def _run_of(folder: Path) -> Run | None:
    """The run in this folder, None for a recording. Raises UsageError for another room's run."""
    from lab.core.run import Run
    from lab.errors import UsageError

    if not Run.is_run(folder):
        return None
    run = Run.open(folder)
    if run.manifest.room != "nan":
        raise UsageError(
            f"this is a run of the room {run.manifest.room!r}", location=folder, fix=f"lab analyze {folder}"
        )
    return run
