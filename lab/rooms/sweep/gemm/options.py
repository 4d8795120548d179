"""Arguments and options that several `lab gemm` commands share."""

from __future__ import annotations

from pathlib import Path

import click

from lab.terminal.findings import REQUIRE
from lab.terminal.options import Decorator, IntList, as_json, option, out, quiet

SWEEP = click.argument("sweep", type=click.Path(path_type=Path))
OUT = out(
    "Analysis folder. [default: SWEEP/tracelens_analysis for a run of lab, "
    "experiments/NAME_analysis/tracelens_analysis for any other recording]"
)
IN_PLACE = click.option(
    "--in-place", is_flag=True, help="Write into the recording's folder even if lab did not make it."
)
WORKERS = click.option(
    "-w", "--workers", type=click.IntRange(min=1), help="Processes. [default: one per CPU, at most 8]"
)
SALVAGE = click.option("--salvage", is_flag=True, help="Use the readable part of truncated traces.")
QUIET = quiet()
JSON = as_json("Files, findings and what is missing")
TOP_K = option(
    "-k",
    "--top-k",
    type=click.IntRange(min=1),
    default=5,
    help="GEMMs per trace in the list.",
)
SELECT: list[Decorator] = [
    option(f"--{name}", type=IntList(0), help=f"Only these {name}. [default: all]")
    for name in ("threads", "channels", "ranks")
]


PLACE: list[Decorator] = [SWEEP, OUT, IN_PLACE]
COMMON: list[Decorator] = [WORKERS, QUIET, JSON, REQUIRE]
