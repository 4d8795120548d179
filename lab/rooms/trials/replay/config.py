"""The settings of a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from lab.errors import BadDataError

CONFIG = "replay.json"


class ReplayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`runs` processes of the command, each recording `steps` steps with `repeats` repeats of each."""

    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    runs: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    steps: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 3
    repeats: Annotated[int, msgspec.Meta(ge=0, le=99)] = 2
    level: Literal["op", "module"] = "op"
    to_the_end: bool = False
    cwd: str | None = None  # where the command runs, in an image mounted read-only; None: the run folder
    in_image: bool = False
    against: str | None = None  # the folder of an earlier replay, perhaps of another machine


def read_replay(path: Path) -> ReplayConfig:
    """Raises BadDataError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ReplayConfig)
    except (OSError, msgspec.DecodeError) as error:
        raise BadDataError(f"not the settings of a replay: {error}", location=path) from error
