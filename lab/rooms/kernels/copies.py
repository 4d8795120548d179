"""Files of a profile under the names that the user gave, in the form of the original scripts."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from lab.core.files import replacing
from lab.errors import UsageError
from lab.rooms.kernels.schema import Arg, LinearShape
from lab.rooms.kernels.trails import read_lines, trails


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
