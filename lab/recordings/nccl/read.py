"""Files of NCCL's tools, by their content: what kind each is, and what all of them say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.errors import BadDataError, LabError, MissingError
from lab.recordings.nccl.evidence import Evidence
from lab.recordings.nccl.inspector import inspector_evidence, is_inspector
from lab.recordings.nccl.ras import is_ras, ras_evidence
from lab.recordings.nccl.speed import is_speed, speed_evidence

MOST_BYTES, MOST_FILES, MOST_OBJECTS = 256 << 20, 16_384, 2_000_000
Document = tuple[Path, Any]
__all__ = ["Evidence", "read_evidence"]


def read_evidence(paths: Sequence[Path]) -> list[Evidence]:
    """What the files say, one Evidence per kind of file; a folder stands for the files in it.

    Raises MissingError where there is no file, BadDataError where none can be read or is known. Of several
    files those that cannot be read are in `missing` of the first Evidence.
    """
    files = list(_files(paths))
    if not files:
        raise MissingError(
            "no file here", location=paths[0] if paths else None, fix="give a file, or a folder"
        )
    found: dict[str, list[Document]] = {"speed": [], "inspector": [], "ras": []}
    failed: list[LabError] = []
    for path in files:
        try:
            documents = _documents(path)
            found[_kind(documents, path)] += [(path, document) for document in documents]
        except LabError as error:
            failed.append(error)
    told = [
        make(found[kind])
        for kind, make in (
            ("speed", speed_evidence),
            ("inspector", inspector_evidence),
            ("ras", ras_evidence),
        )
        if found[kind]
    ]
    if not told:
        raise failed[0]
    told[0].missing.extend(f"{Path(str(error.location)).name}: {error.problem}" for error in failed)
    return told


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
            if len(inside) > MOST_FILES:
                raise BadDataError(
                    f"{len(inside):,} files in one folder: more than {MOST_FILES:,}",
                    location=path,
                    fix="give the files by name, or fewer of them",
                )
            yield from inside
        elif path.exists():
            yield path
        else:
            raise MissingError(
                "no such file", location=path, fix="give a file of nccl-tests, Inspector or RAS"
            )


def _kind(documents: Sequence[Any], path: Path) -> str:
    first = documents[0]
    for kind, is_it in (("speed", is_speed), ("inspector", is_inspector), ("ras", is_ras)):
        if is_it(first):
            return kind
    if isinstance(first, dict) and {"pg_config", "pg_status"} & first.keys():
        raise BadDataError(
            "a flight recorder's dump, which is no speed or count",
            location=path,
            fix="use `lab ranks hang FOLDER`",
        )
    raise BadDataError(
        "JSON of no kind that is known here",
        location=path,
        fix="give nccl-tests' -J file, NCCL Inspector's dump, or `ncclras -f json`",
    )


def _documents(path: Path) -> list[Any]:
    """Every JSON value in a file, whether it has one, one per line, or one list of them."""
    if path.stat().st_size > MOST_BYTES:
        raise BadDataError(f"larger than {MOST_BYTES >> 20} MiB", location=path, fix="split the file")
    text = path.read_bytes().decode("utf-8", "replace").lstrip("\ufeff")
    decoder, at = json.JSONDecoder(), 0
    found: list[Any] = []
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text):
            break
        if len(found) >= MOST_OBJECTS:
            raise BadDataError(f"more than {MOST_OBJECTS:,} values", location=path, fix="split the file")
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            if found:  # a file that its writer was still at: what is whole counts, the rest is said
                found.append({"cut": True})
                break
            raise BadDataError(
                f"not JSON ({error})" if isinstance(error, ValueError) else "JSON nested too deep",
                location=path,
                fix="nccl-tests writes JSON with -J FILE",
            ) from error
        found += value if isinstance(value, list) else [value]
    if not found:
        raise BadDataError("the file is empty", location=path, fix="give a file with JSON")
    return found
