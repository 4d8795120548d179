"""`lab gemm compare`."""

from __future__ import annotations

from pathlib import Path

import click

from lab.errors import needs
from lab.rooms.sweep.gemm.options import COMMON
from lab.rooms.sweep.gemm.session import finish, num_workers, show_progress
from lab.terminal.console import Console
from lab.terminal.findings import raise_unless_complete
from lab.terminal.options import out, with_options


@click.command()
@click.argument("sweeps", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="A B [C...]")
@out(
    "Folder of sweep_comparison.html and its tables, or the page FILE.html itself.",
    default=Path("experiments/comparison"),
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
    require: str | None,
) -> None:
    """Two or more sweeps side by side on one page; the first is what the others are compared to."""
    with needs("analysis"):
        from lab.rooms.sweep.gemm.compare.page import write_comparison

    progress = show_progress(Console(quiet=quiet).detail)
    page = out if out.suffix.lower() in (".html", ".htm") else None
    out = out.parent if page else out
    report = write_comparison(
        sweeps, out, labels=labels, workers=workers or num_workers(), progress=progress, page_path=page
    )
    finish(report, out, files=report.files, as_json=as_json)
    if require == "complete":
        raise_unless_complete(report.incomplete, out)
