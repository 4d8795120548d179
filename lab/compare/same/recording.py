"""A recording of `lab.same` as columns."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from lab.core.words import printable
from lab.errors import BadDataError, MissingError, not_here

MAX_LINE = 1 << 20  # bytes; a row has at most 64 samples
MAX_ROWS = 1_000_000
MAX_BYTES = 1 << 31  # unpacked: a small file can unpack to any size
MAX_SAMPLES = 64
MAX_SIGNED = 16
_WRITE = "write one with lab.same.record"
GZIP = b"\x1f\x8b"


class Row(msgspec.Struct, frozen=True):
    """One output. kind: op, module, input, weight or grad. Norms and samples are None where not finite."""

    op: str
    dtype: str
    shape: tuple[int, ...]
    ck: str
    l2: float | None
    absmax: float | None
    i: int = 0
    out: int = 0
    kind: str = "op"
    phase: str = ""
    node: str = ""
    module: str = ""
    nan: int = 0
    inf: int = 0
    in_ck: tuple[str, ...] = ()
    local_rel: float | None = None
    local_max_rms: float | None = None
    sample_at: tuple[int, ...] = ()
    sample: tuple[float | None, ...] = ()
    signed: tuple[float | None, ...] = ()  # sums of all elements under random signs


class Recording(NamedTuple):
    """samples (rows, MAX_SAMPLES) in float64, NaN where absent; lacks: what is known to be missing.

    unwritten: outputs left out, by operator and name, because nobody need write them.
    """

    path: Path
    meta: dict[str, Any]
    rows: tuple[Row, ...]
    samples: np.ndarray
    lacks: tuple[str, ...]
    unwritten: dict[str, int]

    @property
    def checksum(self) -> str:
        return str(self.meta.get("checksum", "bits"))


class _Meta(msgspec.Struct):
    meta: dict[str, Any]


class _End(msgspec.Struct):
    end: dict[str, Any]


def read(path: Path) -> Recording:
    """Read a recording. Raises MissingError, and BadDataError with the line that cannot be read."""
    rows: list[Row] = []
    meta: dict[str, Any] = {}
    end: dict[str, Any] | None = None
    number = size = 0
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            while line := file.readline(MAX_LINE + 1):
                number, size = number + 1, size + len(line)
                if len(line) > MAX_LINE or len(rows) > MAX_ROWS or size > MAX_BYTES:
                    raise BadDataError(f"line {number} is too long, or the file too large", location=path)
                if number == 1:
                    meta = msgspec.json.decode(line, type=_Meta).meta
                elif line.startswith(b'{"end"'):
                    end = msgspec.json.decode(line, type=_End).end
                else:
                    rows.append(_checked(msgspec.json.decode(line, type=Row), path, number))
    except IsADirectoryError as error:
        raise MissingError("this is a folder, not a recording", location=path, fix=_WRITE) from error
    except FileNotFoundError as error:
        raise not_here("no such recording", path, _WRITE) from error
    except (OSError, EOFError, zlib.error) as error:
        raise BadDataError(f"cut off or damaged after line {number}: {error}", location=path) from error
    except msgspec.DecodeError as error:
        raise BadDataError(
            f"line {number} is not a row of a recording: {error}", location=path, fix=_WRITE
        ) from error
    if not rows:
        raise BadDataError(
            "the recording has no rows", location=path, fix="run the model inside lab.same.record"
        )
    lacks, left = _lacks(meta, end, len(rows)), _unwritten(end or {}, path)
    return Recording(path, meta, tuple(rows), _samples(rows), lacks, left)


def _checked(row: Row, path: Path, number: int) -> Row:
    if len(row.sample) > MAX_SAMPLES or len(row.sample) != len(row.sample_at):
        raise BadDataError(
            f"line {number}: {len(row.sample)} samples at {len(row.sample_at)} places", location=path
        )
    if not row.ck.strip() or min(row.nan, row.inf) < 0:
        raise BadDataError(f"line {number}: no checksum, or a count below 0", location=path, fix=_WRITE)
    if len(row.signed) > MAX_SIGNED:
        raise BadDataError(f"line {number}: {len(row.signed)} sums under signs", location=path)
    texts = {
        name: printable(getattr(row, name)) for name in ("op", "module", "node", "dtype", "kind", "phase")
    }
    return msgspec.structs.replace(row, **texts)


def _samples(rows: list[Row]) -> np.ndarray:
    found = np.full((len(rows), MAX_SAMPLES), np.nan)
    for index, row in enumerate(rows):
        found[index, : len(row.sample)] = [np.nan if one is None else one for one in row.sample]
    return found


def _unwritten(end: dict[str, Any], path: Path) -> dict[str, int]:
    found = end.get("unwritten", {})
    if not isinstance(found, dict) or not all(type(count) is int and count > 0 for count in found.values()):
        raise BadDataError("its end mark counts no outputs that were left out", location=path, fix=_WRITE)
    return {printable(name): count for name, count in found.items()}


def _lacks(meta: dict[str, Any], end: dict[str, Any] | None, rows: int) -> tuple[str, ...]:
    if "format" not in meta:
        return ()  # a recording of another program, which writes no end
    if meta["format"] != 1:
        return (f"format {meta['format']!r} is newer than this lab",)
    if end is None:
        return ("it has no end mark, so rows may be missing",)
    found = [f"the recorded program ended with {printable(str(end['error']))}"] if end.get("error") else []
    if end.get("rows") != rows:
        found.append(f"it has {rows:,} rows, its end mark says {printable(str(end.get('rows')))}")
    return tuple(found)
