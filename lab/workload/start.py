"""How every workload starts: its arguments, its rank, its output and the report of failures."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lab.core.files import write_atomic
from lab.errors import BadDataError, MissingError
from lab.workload.failures import exit_on_signals, redirect_output, report_failures
from lab.workload.rank import RankContext, check_promised_gpus

T = TypeVar("T")


def start(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, *, own_log: bool = False
) -> tuple[argparse.Namespace, RankContext]:
    """Parse `argv` (default: sys.argv) and turn every uncaught error into a message and its exit code.

    Adds --out, the folder that the workload writes. own_log: this rank's output goes to OUT/rankN.log.
    """
    parser.add_argument("--out", required=True, type=Path, help="folder that this process writes to")
    args = parser.parse_args(argv)
    report_failures(RankContext(rank=0, local_rank=0, world_size=1), own_log=io.StringIO(), user=sys.stderr)
    context = RankContext.from_env()  # may fail, and its failure is reported like any other
    report_failures(context, own_log=io.StringIO(), user=sys.stderr)
    check_promised_gpus()
    if own_log:
        redirect_output(args.out / f"rank{context.rank}.log", context)
        exit_on_signals(args.out)
    return args, context


def read_config(path: Path, kind: type[T]) -> T:
    """A step's configuration file as `kind`. Raises MissingError or BadDataError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise MissingError("the configuration file does not exist", location=path) from error
    except (OSError, msgspec.DecodeError) as error:
        raise BadDataError(f"not a configuration of this workload: {error}", location=path) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. Raises StorageError."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
