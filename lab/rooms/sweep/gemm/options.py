"""Arguments and options that several `lab gemm` commands share."""

from __future__ import annotations

from pathlib import Path

import click

SWEEP = click.argument("sweep", type=click.Path(path_type=Path))
OUT = click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Analysis folder. [default: SWEEP/tracelens_analysis for a run of lab, "
    "experiments/NAME_analysis/tracelens_analysis for any other recording]",
)
IN_PLACE = click.option("--in-place", is_flag=True, help="Write into SWEEP even if lab did not make it.")
WORKERS = click.option(
    "-w", "--workers", type=click.IntRange(min=1), help="Processes. [default: one per CPU, at most 8]"
)
SALVAGE = click.option("--salvage", is_flag=True, help="Use the readable part of truncated traces.")
QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress.")
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Files, findings and what is missing as JSON on stdout."
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
