"""Read recordings: one file per rank, one JSON line per recorded tensor. They come from outside.

The first line is `{"meta": ...}`, the last `{"end": ...}`, which says that nothing is cut off. No torch here.
"""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from lab.core.words import first_few, printable
from lab.errors import BadDataError, MissingError, not_here

FORMAT = 2
OF_STEPS = "bits_rank*.jsonl"  # what `training` writes into a folder
OF_RANKS = "rank*.same.jsonl.gz"  # what `record` writes into a folder where there are several ranks
MAX_LINE = 1 << 20  # bytes
MAX_ROWS = 5_000_000
MAX_BYTES = 4 << 30  # unpacked: a small file can unpack to any size
MAX_RANKS = 4096
MAX_SAMPLES = 64
MAX_SIGNED = 16
WRITE = "write one with lab.same.record"
GZIP = b"\x1f\x8b"
Text = Annotated[str, msgspec.Meta(max_length=1000)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Samples = Annotated[tuple[float | None, ...], msgspec.Meta(max_length=MAX_SAMPLES)]
Sums = Annotated[tuple[float | None, ...], msgspec.Meta(max_length=MAX_SIGNED)]


class Row(msgspec.Struct, frozen=True):
    """One tensor. kind: op, comm, module, input, weight, buffer, grad, reduced, used or random.

    phase: start, fwd, bwd, update or end. in_ck: checksums of what it was computed from. Norms and samples
    are None where not finite, or where checksums alone were recorded. signed: sums of all elements under
    random signs. place, coordinate: placements of a DTensor ("S0", "R", "P") and this rank's coordinate per
    dimension of the mesh; full_shape: its shape. sharded: for a plain tensor of one of several ranks,
    `signed` for each dimension as if ranks had equal parts of it.
    """

    op: Text
    ck: Text
    dtype: Text = ""
    shape: tuple[int, ...] = ()
    l2: float | None = None
    absmax: float | None = None
    i: int = 0
    out: int = 0
    kind: Text = "op"
    phase: Text = ""
    node: Text = ""
    module: Text = ""
    nan: Count = 0
    inf: Count = 0
    in_ck: tuple[Text, ...] = ()
    local_rel: float | None = None
    sample_at: tuple[int, ...] = ()
    sample: Samples = ()
    signed: Sums = ()
    step: int = 1
    attempt: int = 0
    random: bool = False
    place: tuple[Text, ...] = ()
    coordinate: tuple[int, ...] = ()
    full_shape: tuple[int, ...] = ()
    sharded: tuple[Sums, ...] = ()


class Recording(NamedTuple):
    """One rank of one run. lacks: what is known to be missing; unwritten: outputs left out, by name."""

    path: Path
    meta: dict[str, Any]
    rows: tuple[Row, ...]
    lacks: tuple[str, ...]
    end: dict[str, Any]

    @property
    def checksum(self) -> str:
        return str(self.meta.get("checksum", "bits"))

    @property
    def rank(self) -> int:
        return int(self.meta.get("rank", 0))

    @property
    def world(self) -> int:
        return int(self.meta.get("world", 1))

    @property
    def unwritten(self) -> dict[str, int]:
        return _counts(self.end.get("unwritten"), self.path)

    @property
    def notes(self) -> list[str]:
        """What the recorder says that it could not see."""
        notes = self.end.get("notes")
        return [printable(str(note)) for note in notes] if isinstance(notes, list) else []


class _Meta(msgspec.Struct):
    meta: dict[str, Any]


class _End(msgspec.Struct):
    end: dict[str, Any]


_rows = msgspec.json.Decoder(Row)


def read(path: Path) -> Recording:
    """Read a recording. Raises MissingError, and BadDataError with the line that cannot be read."""
    rows: list[Row] = []
    meta: dict[str, Any] = {}
    end: dict[str, Any] | None = None
    number = size = 0
    is_cut = False
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            while line := file.readline(MAX_LINE + 1):
                number, size = number + 1, size + len(line)
                if len(line) > MAX_LINE or len(rows) > MAX_ROWS or size > MAX_BYTES:
                    raise BadDataError(f"line {number} is too long, or the file too large", location=path)
                try:
                    if number == 1:
                        meta = _checked_meta(msgspec.json.decode(line, type=_Meta).meta, path)
                    elif line.startswith(b'{"end"'):
                        end = msgspec.json.decode(line, type=_End).end
                    else:
                        rows.append(_checked(_rows.decode(line), path, number))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    is_whole = isinstance(error, msgspec.ValidationError) or line.endswith(b"\n")
                    if is_whole or number == 1 or packed:
                        raise
                    is_cut = True  # a killed program's last line
    except IsADirectoryError as error:
        raise MissingError("this is a folder, not a recording", location=path, fix=WRITE) from error
    except FileNotFoundError as error:
        raise not_here("no such recording", path, WRITE) from error
    except (OSError, EOFError, zlib.error) as error:
        raise BadDataError(f"cut off or damaged after line {number}: {error}", location=path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadDataError(
            f"line {number} is not a row of a recording: {error}", location=path, fix=WRITE
        ) from error
    if not number:
        raise BadDataError("the recording is empty", location=path, fix=WRITE)
    return Recording(path, meta, tuple(rows), _lacks(path, meta, end, len(rows), is_cut), end or {})


def _checked_meta(meta: dict[str, Any], path: Path) -> dict[str, Any]:
    rank, world = meta.get("rank", 0), meta.get("world", 1)
    if type(rank) is not int or type(world) is not int or not 0 <= rank < world <= MAX_RANKS:
        raise BadDataError(f"rank {rank!r} of {world!r} is not a rank", location=path, fix=WRITE)
    return meta


def _checked(row: Row, path: Path, number: int) -> Row:
    if len(row.sample) != len(row.sample_at):
        problem = f"line {number}: {len(row.sample)} samples at {len(row.sample_at)} places"
        raise BadDataError(problem, location=path, fix=WRITE)
    if (row.l2 is not None or row.sample) and not row.ck.strip():
        raise BadDataError(f"line {number}: a row without a checksum", location=path, fix=WRITE)
    texts = (row.op, row.module, row.node, row.dtype, row.kind, row.phase)
    if all(text.isprintable() for text in texts):
        return row
    names = ("op", "module", "node", "dtype", "kind", "phase")
    return msgspec.structs.replace(row, **dict(zip(names, map(printable, texts), strict=True)))


def _counts(value: object, path: Path) -> dict[str, int]:
    """How often each thing was left out. Raises BadDataError where it is not a table of counts."""
    table = value or {}
    if not isinstance(table, dict) or not all(type(count) is int and count > 0 for count in table.values()):
        raise BadDataError("its end mark counts no outputs that were left out", location=path, fix=WRITE)
    return {printable(str(name)): count for name, count in table.items()}


def _lacks(
    path: Path, meta: dict[str, Any], end: dict[str, Any] | None, rows: int, is_cut: bool
) -> tuple[str, ...]:
    if "format" not in meta:
        return ("it is cut off",) if is_cut else ()  # a recording of another program, which writes no end
    if meta["format"] not in (1, FORMAT):
        return (f"format {meta['format']!r} is newer than this lab",)
    if end is None:
        return ("it is cut off: the program was killed, and rows may be missing",)
    problems = [f"the recorded program ended with {printable(str(end['error']))}"] if end.get("error") else []
    if end.get("rows") != rows:
        problems.append(f"it has {rows:,} rows, its end mark says {printable(str(end.get('rows')))}")
    if end.get("left_out"):
        problems.append(f"{printable(str(end['left_out']))} rows left out")
    if unseen := _counts(end.get("unseen"), path):
        problems.append(f"tensors without readable bits: {first_few(list(unseen))}")
    return tuple(problems)


def files_of(folder: Path, pattern: str = OF_STEPS) -> list[Path]:
    """The recordings of a folder, by rank."""
    return sorted(folder.glob(pattern), key=lambda path: int((re.search(r"\d{1,9}", path.name) or ["0"])[0]))
