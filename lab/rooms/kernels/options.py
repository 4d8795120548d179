"""Arguments and options that several commands of the room share."""

from __future__ import annotations

from pathlib import Path

import click

from lab.terminal.options import as_json, option, out, with_options

# Commands that rebuild a recording.
SOURCE = with_options(
    click.argument("source", type=click.Path(path_type=Path)),
    click.option(
        "--execution-trace",
        type=click.Path(path_type=Path),
        help="Recorded together with the trace; found automatically in a RUN.",
    ),
)
RANK = option(
    "--rank",
    type=click.IntRange(min=0),
    default=0,
    help="Which rank of a RUN over several GPUs.",
)

# Commands that read traces.
TRACES = click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
CAPTURE = click.option(
    "--capture",
    "captures",
    multiple=True,
    metavar="FILE|FOLDER",
    type=click.Path(path_type=Path),
    help="Where the graphs' operators are: the trace of their capture, the folder that vLLM or SGLang wrote, "
    "an eager trace of the same model. Repeat it for several.",
)
INDUCTOR = click.option(
    "--inductor",
    multiple=True,
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="What torch.compile wrote (torch_compile_debug, or its cache): fused ops and lines of the model. "
    "Such folders beside the trace are found. Repeatable.",
)
OUT = out("Where files go. [default: the run; for a bare trace, experiments/NAME_analysis]")
TABLE_OUTPUT = with_options(
    OUT,
    as_json("The table"),
    option(
        "-n",
        "--top",
        type=click.IntRange(min=0),
        default=20,
        help="Rows to print; all are written.",
    ),
)
