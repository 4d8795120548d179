"""Turn what a recording lacks into an exit code, after everything was written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.core.words import listed
from lab.errors import StepFailed

if TYPE_CHECKING:
    from lab.recordings.lacks import Lack

_FIX = "where rows are missing, figures are bounds (at least, at most); record again for exact ones"

REQUIRE = click.option(
    "--require",
    type=click.Choice(["complete"]),
    help="Exit 1 unless the recording is complete. [default: only for a hole in it]",
)


def raise_for_lacks(lacks: Sequence[Lack], source: Path | str, *, require: str | None = None) -> None:
    """Raises StepFailed for a hole, which no edge of the recorded window explains; with `require` for
    anything but a complete recording."""
    from lab.recordings.integrity.words import sentences
    from lab.recordings.lacks import counted, holes

    if require == "complete":
        raise_unless_complete(sentences(counted(lacks)), source)
    elif torn := holes(lacks):
        raise StepFailed(listed("the recording is incomplete", sentences(torn)), location=source, fix=_FIX)


def raise_unless_complete(incomplete: Sequence[str], source: Path | str) -> None:
    """Raises StepFailed if any sentence names something that a recording lacks."""
    if incomplete:
        problem = "--require complete: the recording is not, or not known to be"
        raise StepFailed(listed(problem, incomplete), location=source, fix=_FIX)
