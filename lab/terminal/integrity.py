"""What a lossy recording means for a command: everything is written first, then the exit code says it."""

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


def raise_for_lacks(lacks: Sequence[Lack], where: Path | str, *, require: str | None = None) -> None:
    """Raises StepFailed for a hole, which no edge of the recorded window explains; with `require` for
    anything but a complete recording."""
    from lab.recordings.integrity.words import sentences
    from lab.recordings.lacks import counted, holes

    if require == "complete":
        raise_unless_complete(sentences(counted(lacks)), where)
    elif torn := holes(lacks):
        raise StepFailed(listed("the recording is incomplete", sentences(torn)), where=where, fix=_FIX)


def raise_unless_complete(incomplete: Sequence[str], where: Path | str) -> None:
    """Raises StepFailed if there is any sentence about something that a recording lacks."""
    if incomplete:
        what = "--require complete: the recording is not, or not known to be"
        raise StepFailed(listed(what, incomplete), where=where, fix=_FIX)
