"""The files of a replay run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from lab.errors import BadDataError
from lab.rooms.kernels.catalogue.execution_trace import read_json_bytes

PLAN_FILE = "replay_plan.json"
RAW_FILE = "replay/replay_raw.json"
RESULT, TABLE = "replay.json", "tables/replay.csv"


def is_replay(folder: Path) -> bool:
    """Whether `folder` is a run of `lab run kernels replay`."""
    return (folder / PLAN_FILE).is_file()


def read_file(path: Path, kind: type[Any]) -> Any:
    """One of the room's own files. Raises MissingError and BadDataError."""
    try:
        return msgspec.json.decode(read_json_bytes(path, path.name), type=kind)
    except msgspec.DecodeError as error:
        raise BadDataError(f"{path.name} does not fit its schema: {error}", location=path) from error
