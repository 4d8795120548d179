"""What a lossy recording means for a command: everything is written first, then the exit code says it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.errors import StepFailed

if TYPE_CHECKING:
    from lab.recordings.lacks import Lack

REQUIRE = click.option(
    "--require",
    type=click.Choice(["complete"]),
    help="Exit 1 unless the recording is complete. [default: only for a hole in it]",
)


def raise_for_lacks(lacks: Sequence[Lack], where: Path | str, *, require: str | None = None) -> None:
    """Raises StepFailed for a hole, which no edge of the recorded window explains; with `require` for
    anything but a complete recording."""
    from lab.recordings.integrity.words import sentences
    from lab.recordings.lacks import holes

    bad = list(lacks) if require == "complete" else holes(lacks)
    if not bad:
        return
    lossy = any(not lack.unknown for lack in bad)
    raise StepFailed(
        f"the recording is {'incomplete' if lossy else 'not known to be complete'}:\n"
        + "\n".join(f"  {sentence}" for sentence in sentences(bad)),
        where=where,
        fix="figures are bounds (at least, at most) where rows are missing; record again for exact ones",
    )
