"""Files of NCCL's tools, by their content: what kind each is, and what all of them say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.errors import BadDataError, LabError, MissingError
from lab.recordings.nccl.evidence import Document, Evidence
from lab.recordings.nccl.inspector import inspector_evidence, is_inspector
from lab.recordings.nccl.printed import documents_in, is_rccl, rccl_documents, rows_in
from lab.recordings.nccl.ras import is_ras, ras_evidence
from lab.recordings.nccl.speed import is_speed, speed_evidence

MOST_BYTES, MOST_FILES, MOST_OBJECTS = 256 << 20, 16_384, 2_000_000
_KINDS = ((is_speed, speed_evidence), (is_inspector, inspector_evidence), (is_ras, ras_evidence))
__all__ = ["Evidence", "read_evidence"]


def read_evidence(paths: Sequence[Path]) -> list[Evidence]:
    """Read what the files say, one Evidence per kind of file; a folder stands for the files in it.

    Raises MissingError where there is no file, BadDataError where none can be read or is known. Of several
    files those that cannot be read are in `missing` of the first Evidence.
    """
    files = list(_files(paths))
    if not files:
        raise MissingError(
            "no file here", location=paths[0] if paths else None, fix="give a file, or a folder"
        )
    documents: list[list[Document]] = [[] for _ in _KINDS]
    errors: list[LabError] = []
    for path in files:
        try:
            values = _values(path)
            documents[_kind_index(values[0], path)] += [(path, value) for value in values]
        except LabError as error:
            errors.append(error)
    evidence = [judge(of_kind) for (_, judge), of_kind in zip(_KINDS, documents, strict=True) if of_kind]
    if not evidence:
        raise errors[0]
    evidence[0].missing += [f"{Path(str(error.location)).name}: {error.problem}" for error in errors]
    return evidence


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise MissingError(
                "no such file", location=path, fix="give a file of nccl-tests, Inspector or RAS"
            )
        if not path.is_dir():
            yield path
            continue
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        if len(files) > MOST_FILES:
            raise BadDataError(
                f"{len(files):,} files in one folder: more than {MOST_FILES:,}",
                location=path,
                fix="give the files by name, or fewer of them",
            )
        yield from files


def _kind_index(value: Any, path: Path) -> int:
    """The index in _KINDS of a file that begins with this value."""
    for index, (is_kind, _) in enumerate(_KINDS):
        if is_kind(value):
            return index
    if isinstance(value, dict) and {"pg_config", "pg_status"} & value.keys():
        raise BadDataError(
            "a flight recorder's dump, which is no speed or count",
            location=path,
            fix="use `lab ranks hang FOLDER`",
        )
    raise BadDataError(
        "neither nccl-tests' nor rccl-tests' results, nor JSON of NCCL Inspector or RAS",
        location=path,
        fix="give nccl-tests' output or -J file, NCCL Inspector's dump, or `ncclras -f json`",
    )


def _values(path: Path) -> list[Any]:
    """Every JSON value in a file, whether it has one, one per line, or one list of them; of what nccl-tests
    and rccl-tests print or write otherwise, the same as nccl-tests' JSON."""
    if path.stat().st_size > MOST_BYTES:
        raise BadDataError(f"larger than {MOST_BYTES >> 20} MiB", location=path, fix="split the file")
    text = path.read_bytes().decode("utf-8", "replace").lstrip("\ufeff")
    if printed := documents_in(text, path.name):
        return list(printed)
    if rows := rows_in(text):
        return list(rccl_documents(rows))
    decoder, offset = json.JSONDecoder(), 0
    values: list[Any] = []
    while True:
        while offset < len(text) and text[offset] in " \t\r\n,":
            offset += 1
        if offset >= len(text):
            break
        if len(values) >= MOST_OBJECTS:
            raise BadDataError(f"more than {MOST_OBJECTS:,} values", location=path, fix="split the file")
        try:
            value, offset = decoder.raw_decode(text, offset)
        except (ValueError, RecursionError) as error:
            if values:  # a file that its writer was still at: what is whole counts, the cut is named
                values.append({"cut": True})
                break
            raise BadDataError(
                f"not JSON ({error})" if isinstance(error, ValueError) else "JSON nested too deep",
                location=path,
                fix="give what nccl-tests prints or writes with -J FILE, or rccl-tests with -Z json -x FILE",
            ) from error
        values += value if isinstance(value, list) else [value]
    if not values:
        raise BadDataError("the file is empty", location=path, fix="give a file with JSON")
    return list(rccl_documents(values)) if is_rccl(values[0]) else values
