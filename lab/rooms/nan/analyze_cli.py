"""`lab nan analyze RUN...`: one run, or the two levels of the same experiments joined."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("analyze")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--sass", is_flag=True, help="Ask for nixnan's logs: an experiment without one is an error.")
@click.option("-o", "--out", type=click.Path(path_type=Path),
              help="Where tables, figures and page go. [default: the run; else experiments/NAME_analysis]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Findings as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def analyze(folders: tuple[Path, ...], sass: bool, out: Path | None, as_json: bool, quiet: bool) -> None:
    """Ranking, births, layers, instructions, evidence: report.html of a run or of the published layout.

    Several runs become one page: `lab nan analyze RUN_OF_NAN RUN_OF_NIXNAN` joins modules and instructions of the same
    experiments. A folder that lab did not make is not written to.
    """
    from lab.analysis import home_of
    from lab.console import Console
    from lab.core.files import make_folder
    from lab.errors import MissingError, needs
    from lab.show import raise_for_findings, show_findings
    from lab.survey import Options

    with needs("analysis"):
        from lab.rooms.nan.findings import analyse_nan
    for folder in folders:
        if not folder.is_dir():
            if folder.exists():
                raise MissingError(
                    "this is a file, not a folder", where=folder, fix=f"lab nan parse {folder}"
                )
            raise MissingError("no such folder", where=folder, fix="see `lab runs list`")
    target = out or (home_of(folders[0]) if len(folders) == 1 else home_of(Path(_joined_name(folders))))
    runs = [_run_of(folder) for folder in folders]
    make_folder(target)
    findings = analyse_nan(folders, target, runs, Console(quiet=quiet).detail, sass=sass)
    show_findings(folders[0], findings, Options(json=as_json))
    raise_for_findings(findings, folders[0])


def _joined_name(folders: tuple[Path, ...]) -> str:
    return "+".join(folder.resolve().name for folder in folders)


def _run_of(folder: Path):  # type: ignore[no-untyped-def]
    """The run in this folder, None for a recording. Raises UsageError for another room's run."""
    from lab.core.run import Run
    from lab.errors import UsageError

    if not Run.is_run(folder):
        return None
    run = Run.open(folder)
    if run.manifest.room != "nan":
        raise UsageError(
            f"this is a run of the room {run.manifest.room!r}", where=folder, fix=f"lab analyze {folder}"
        )
    return run
