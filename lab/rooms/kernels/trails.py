"""The files of a profile, rank by rank, and how structs are read from and written to JSON files."""

from __future__ import annotations

import gzip
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from lab.core.files import replacing
from lab.errors import BadDataError, UsageError, not_here
from lab.rooms.kernels.schema import PROFILE, Arg, LinearShape


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


# Files of a profile under the names that the user gave, in the form of the original scripts.


def refuse_targets(*targets: Path | None) -> None:
    """Raise UsageError, before anything runs, for a file whose folder does not exist."""
    for target in targets:
        if target is not None and not target.parent.is_dir():
            raise UsageError(f"no such folder: {target.parent}", location=target, fix="make it first")


def copy_files(root: Path, trace: Path | None, shapes: Path | None) -> None:
    """Write the traces of a run to `trace`, the distinct calls of its Linears to `shapes`."""
    profile = trails(root)
    for trail in profile if trace is not None else ():
        assert trace is not None
        target = trace.with_name(_ranked(trace.name, trail.rank)) if len(profile) > 1 else trace
        with trail.trace.open("rb") as packed, replacing(target) as file:
            shutil.copyfileobj(packed if target.suffix == ".gz" else gzip.GzipFile(fileobj=packed), file)
        click.echo(str(target))
    if shapes is not None:
        paths = [trail.linear_shapes for trail in profile if trail.linear_shapes]
        with replacing(shapes) as file:
            for path in paths:
                for line in read_lines(path, LinearShape):
                    file.write(msgspec.json.encode(_as_published(line)) + b"\n")
        click.echo(str(shapes))


def _ranked(name: str, rank: int) -> str:
    stem, dot, suffixes = name.partition(".")
    return f"{stem}_rank{rank}{dot}{suffixes}"


def _as_published(line: LinearShape) -> dict[str, Any]:
    """The keys of the original shape log, then where and how often."""
    return {
        "module": line.cls,
        "in_shape": _shape(line.in_),
        "out_shape": _shape(line.out),
        "dtype": f"torch.{line.in_[0].dtype}" if line.in_ else "",
        "path": line.module_path,
        "phase": line.phase,
        "rank": line.rank,
        "count": line.count,
    }


def _shape(tensors: Sequence[Arg]) -> list[int] | None:
    return tensors[0].shape if tensors else None
