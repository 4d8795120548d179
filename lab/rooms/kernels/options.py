"""Options that several commands of the room share."""

from __future__ import annotations

from pathlib import Path

import click

from lab.terminal.click_types import with_options

SOURCE = with_options(
    click.argument("source", type=click.Path(path_type=Path)),
    click.option(
        "--execution-trace",
        type=click.Path(path_type=Path),
        help="Recorded together with the trace; found by itself in a RUN.",
    ),
)
RANK = click.option(
    "--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Of a RUN over several GPUs."
)
