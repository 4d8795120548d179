"""File names that several modules use, and comparisons that lab did not make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from lab.errors import BadDataError

COMPARISON = "tables/compare.json"
HEADS = {"pytorch_crf": "pytorch-crf", "linear_crf_triton": "linear", "semi_crf": "semicrf"}
MOST_BYTES = 16 << 20  # a comparison is a page of text


def comparisons(folder: Path) -> dict[Path, dict[str, Any]]:
    """The files in `folder` in the JSON form of the TIMIT benchmark's `compare`."""
    documents = {}
    for path in sorted(folder.glob("*.json")):
        if path.is_file() and path.stat().st_size <= MOST_BYTES:
            try:
                content = msgspec.json.decode(path.read_bytes())
            except msgspec.DecodeError:
                continue  # some other file
            if isinstance(content, dict) and content.get("task") == "timit":
                documents[path] = content
    return documents


def read_json(path: Path) -> Any:
    """Raises BadDataError naming the file."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise BadDataError(f"cannot be read as JSON: {error}", location=path) from error
