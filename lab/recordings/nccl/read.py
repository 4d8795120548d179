"""Files of nccl-tests and rccl-tests, printed or written, and what all of them say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.errors import BadDataError, LabError, MissingError
from lab.recordings.nccl.printed import documents_in, is_rccl, rccl_documents, rows_in
from lab.recordings.nccl.speed import Evidence, add_document, is_speed

MOST_BYTES, MOST_FILES = 256 << 20, 16_384


def read_evidence(paths: Sequence[Path]) -> Evidence:
    """Read what the files say; a folder stands for the files in it.

    Raises MissingError without a file, BadDataError where none can be read. Of several files those
    that cannot be read are in `missing`.
    """
    files = list(_files(paths))
    if not files:
        raise MissingError(
            "no file here", location=paths[0] if paths else None, fix="give a file, or a folder"
        )
    evidence = Evidence()
    errors: list[LabError] = []
    for path in files:
        try:
            documents = _documents(path)
        except LabError as error:
            errors.append(error)
            continue
        for document in documents:
            add_document(evidence, path.name, document)
    if len(errors) == len(files):
        raise errors[0]
    evidence.missing += [f"{Path(str(error.location)).name}: {error.problem}" for error in errors]
    return evidence


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise MissingError("no such file", location=path, fix="give a file of nccl-tests or rccl-tests")
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


def _documents(path: Path) -> list[Any]:
    """The runs in a file, each as a document of nccl-tests' JSON."""
    if path.stat().st_size > MOST_BYTES:
        raise BadDataError(f"larger than {MOST_BYTES >> 20} MiB", location=path, fix="split the file")
    text = path.read_bytes().decode("utf-8", "replace").lstrip("\ufeff")
    if printed := documents_in(text, path.name):
        return printed
    values = rows_in(text) or _json_values(text, path)
    if is_rccl(values[0]):
        return rccl_documents(values)
    if not is_speed(values[0]):
        is_dump = isinstance(values[0], dict) and {"pg_config", "pg_status"} & values[0].keys()
        raise BadDataError(
            "neither nccl-tests' nor rccl-tests' results",
            location=path,
            fix="use `lab ranks hang FOLDER` for a flight recorder's dump"
            if is_dump
            else "give what nccl-tests prints or writes with -J FILE, or rccl-tests with -Z json -x FILE",
        )
    return values


def _json_values(text: str, path: Path) -> list[Any]:
    """The values of one JSON, or of one per line; of a list its elements."""
    try:
        try:
            value = json.loads(text)
        except ValueError:
            value = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise BadDataError(
            f"not JSON ({error})" if isinstance(error, ValueError) else "JSON nested too deep",
            location=path,
            fix="give what nccl-tests prints or writes with -J FILE, or rccl-tests with -Z json -x FILE",
        ) from error
    values = value if isinstance(value, list) else [value]
    if not values:
        raise BadDataError("the file is empty", location=path, fix="give a file with results")
    return values
