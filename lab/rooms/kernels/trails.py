"""The files of a profile, rank by rank, and how structs are read from and written to JSON files."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lab.core.files import replacing
from lab.errors import BadDataError, not_here
from lab.rooms.kernels.schema import PROFILE


class Trail(msgspec.Struct, kw_only=True):
    """The files of one rank's profile; None for a missing one."""

    rank: int
    trace: Path
    execution_trace: Path | None = None
    recorded_ops: Path | None = None
    linear_shapes: Path | None = None
    generation: Path | None = None


def trails(folder: Path) -> list[Trail]:
    """The profile of each rank in a run folder or in its `profile/`, by rank; empty if there is none."""
    home = folder / PROFILE if (folder / PROFILE).is_dir() else folder
    by_rank = []
    for trace in home.glob("trace_rank*.json*"):
        number = trace.name.removeprefix("trace_rank").split(".")[0]
        if number.isdecimal():
            by_rank.append(_trail(home, int(number), trace))
    return sorted(by_rank, key=lambda trail: trail.rank)


def _trail(home: Path, rank: int, trace: Path) -> Trail:
    def find(name: str) -> Path | None:
        return next((path for path in sorted(home.glob(name)) if path.stat().st_size), None)

    return Trail(
        rank=rank,
        trace=trace,
        execution_trace=find(f"execution_trace_rank{rank}.json*"),
        recorded_ops=find(f"recorded_ops_rank{rank}.jsonl"),
        linear_shapes=find(f"linear_shapes_rank{rank}.jsonl"),
        generation=find(f"generation_rank{rank}.json"),
    )


_S = TypeVar("_S", bound=msgspec.Struct)
_T = TypeVar("_T")


def read_lines(path: Path, kind: type[_S]) -> Iterator[_S]:
    """The structs of a JSONL file. Raises MissingError, or BadDataError with the line that does not fit."""
    decoder = msgspec.json.Decoder(kind)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    try:
                        yield decoder.decode(line)
                    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                        location = f"{path}:{number}"
                        raise BadDataError(f"not a {kind.__name__}: {error}", location=location) from error
    except FileNotFoundError as error:
        raise not_here("no such file", path) from error


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """Write structs or mappings as JSONL, atomically."""
    encoder = msgspec.json.Encoder()
    with replacing(path) as file:
        for row in rows:
            file.write(encoder.encode(row) + b"\n")
    return path


def read_json(path: Path, kind: type[_T]) -> _T:
    """Return the struct of a JSON file, gzip or plain. Raises MissingError and BadDataError."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        return msgspec.json.decode(data, type=kind)
    except FileNotFoundError as error:
        raise not_here("no such file", path) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadDataError(f"not a readable {kind.__name__}: {error}", location=path) from error
