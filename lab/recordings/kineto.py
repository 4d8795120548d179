"""Kineto traces (torch.profiler's JSON, plain or gzip) as columns, in one pass and with bounded memory.

The seam: `pieces` yields text, `_Columns.feed` turns one text into numpy columns; a native scanner can
replace `feed` alone. The format is that of pytorch/kineto, `libkineto/src/output_json.cpp`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain, compress
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from lab.recordings import tables
from lab.recordings.pieces import PIECE_BYTES, EventPieces, Piece, elements, inside_string
from lab.recordings.tables import ProcessGroup, Trace, TraceMeta

# Raise it whenever the same file would give other columns: caches of older readers are then ignored.
READER_VERSION = 3

# Categories in lower case: torch 1.12 writes Kernel, Memcpy, Memset and Runtime, and Operator before that.
GPU_KINDS = {
    "kernel": tables.KERNEL,
    **dict.fromkeys(("gpu_memcpy", "memcpy"), tables.MEMCPY),
    **dict.fromkeys(("gpu_memset", "memset"), tables.MEMSET),
}
TABLE_OF = {
    **dict.fromkeys(GPU_KINDS, "kernels"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "hip_runtime", "runtime"), "runtime"),
    **dict.fromkeys(("user_annotation", "gpu_user_annotation"), "ranges"),
    **dict.fromkeys(("cpu_op", "operator"), "ops"),
    "": "names",
}

# Below this many microseconds two texts with three decimals never share a float64: 2^43 us is 101 days, and
# Kineto moves its base every quarter of a year. Above it the digits are read as integers instead.
FLOAT_EXACT_US = float(2**43)

ODD = "odd events were read with replaced characters or without their odd fields"

_GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "smem_bytes")
_NO_RAW = msgspec.Raw(b"")
_NO_SIZE = (-1, -1, -1)
_NAN = float("nan")
_INT64 = range(-(2**63), 2**63)
_S = TypeVar("_S", bound=msgspec.Struct)


def read_kineto(path: Path | str, *, salvage: bool = False, piece_bytes: int = PIECE_BYTES) -> Trace:
    """Read one trace; all times become absolute integer nanoseconds.

    salvage keeps the readable part of a cut or damaged file and says in `problems` what is missing.
    Raises MissingError without the file; BadDataError, with the byte, if it is cut, damaged or foreign.
    """
    pieces = EventPieces(Path(path), salvage=salvage, piece_bytes=piece_bytes)
    columns = _Columns(pieces)
    for piece in pieces:
        columns.feed(piece)
    if pieces.cut:
        columns.problems[pieces.cut] += 1
    return columns.finish(_decode_frame(pieces, columns.problems))


class _Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments we use, in the order Kineto writes them (the decoder is fastest that way)."""

    external_id: int = msgspec.field(name="External id", default=-1)
    sequence: int = msgspec.field(name="Sequence number", default=-1)  # links a backward op to its forward op
    rf_id: int = msgspec.field(name="Record function id", default=-1)
    device: int | str = -1  # HIP runtime calls write some of these as text
    stream: int | str = -1
    correlation: int = -1
    regs: int = msgspec.field(name="registers per thread", default=-1)
    smem_bytes: int = msgspec.field(name="shared memory", default=-1)
    bytes_: int | str = msgspec.field(name="bytes", default=-1)
    grid: tuple[int, int, int] = _NO_SIZE
    block: tuple[int, int, int] = _NO_SIZE
    collective: str = msgspec.field(name="Collective name", default="")
    in_nelems: int = msgspec.field(name="In msg nelems", default=-1)
    out_nelems: int = msgspec.field(name="Out msg nelems", default=-1)
    group_size: int = msgspec.field(name="Group size", default=-1)
    dtype: str = ""
    in_split: msgspec.Raw = msgspec.field(name="In split size", default=_NO_RAW)
    out_split: msgspec.Raw = msgspec.field(name="Out split size", default=_NO_RAW)
    pg_name: str = msgspec.field(name="Process Group Name", default="")
    pg_desc: str = msgspec.field(name="Process Group Description", default="")
    pg_ranks: str = msgspec.field(name="Process Group Ranks", default="")
    seq: int = msgspec.field(name="Seq", default=-1)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NO_RAW)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NO_RAW)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=_NO_RAW)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_RAW)
    name: msgspec.Raw = _NO_RAW  # of a process or thread
    labels: msgspec.Raw = _NO_RAW


_NO_ARGS = _Args()


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = _NAN
    dur: float = _NAN
    args: _Args = _NO_ARGS


class _ExactEvent(msgspec.Struct, gc=False):
    """The same, with a time too large for a float64: its digits."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: msgspec.Raw = _NO_RAW
    dur: float = _NAN
    args: _Args = _NO_ARGS


_FLOAT_LIST = msgspec.json.Decoder(list[_Event])
_EXACT_LIST = msgspec.json.Decoder(list[_ExactEvent])
_FLOAT_ONE = msgspec.json.Decoder(_Event)
_EXACT_ONE = msgspec.json.Decoder(_ExactEvent)
_ENCODER = msgspec.json.Encoder(decimal_format="number")

_PH, _CAT, _NAME, _TS, _DUR = (attrgetter(name) for name in ("ph", "cat", "name", "ts", "dur"))
_ARGS = attrgetter("args")


def _has_grid(args: _Args) -> bool:
    return args.grid is not _NO_SIZE


class _TooLarge(Exception):
    """Times that a float64 cannot hold."""


class _Strings(dict[str, int]):
    """Text -> id, given out on first sight; "" is -1."""

    def __init__(self) -> None:
        super().__init__({"": -1})
        self.list: list[str] = []

    def __missing__(self, text: str) -> int:
        self[text] = len(self.list)
        self.list.append(text)
        return self[text]


class _Lookup(dict[Any, Any]):
    """A cache that computes each value once."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: Any) -> Any:
        value = self[key] = self._compute(key)
        return value


class _Columns:
    """Bytes in, columns out: `feed` takes texts of whole events, `finish` returns the tables."""

    def __init__(self, pieces: EventPieces) -> None:
        self.problems: Counter[str] = Counter()
        self._pieces = pieces
        self._exact = False
        self._chunks: dict[str, list[dict[str, np.ndarray]]] = defaultdict(list)
        self._num_rows: Counter[str] = Counter()
        self._strings = _Strings()
        self._ids = _Lookup(self._number_id)
        self._raw_ids = _Lookup(self._text_of_raw)
        self._table_of = _Lookup(lambda cat: TABLE_OF.get(cat.lower(), ""))
        self._kind_of = _Lookup(lambda cat: GPU_KINDS[cat.lower()])
        self._geometry: dict[int, tuple[int, ...]] = {}  # by correlation, where the launch tells it
        self._named: dict[tuple[str, int, int], int] = {}

    def feed(self, piece: Piece) -> None:
        """Decode one piece and append its rows; raises BadDataError for text that is not JSON."""
        try:
            self._add(self._decode(piece))
        except _TooLarge:
            self._exact = True
            self._add(self._decode(piece))

    def finish(self, frame: dict[str, Any]) -> Trace:
        """The trace, once every piece has been fed."""
        base_ns = _number(frame.get("baseTimeNanoseconds"))
        base_ns = base_ns if base_ns is not None and 0 <= base_ns < 2**62 else 0
        for chunks in self._chunks.values():
            for chunk in chunks:
                if "ts_ns" in chunk:
                    chunk["ts_ns"] += base_ns
        if self._pieces.cut and "baseTimeNanoseconds" not in frame and not self._exact:
            self.problems["the base time is lost: times count from an unknown moment"] += 1
        self._name_threads()
        self._fill_geometry()
        found = {
            name: tables.concat(self._chunks.pop(name, []), schema) for name, schema in tables.SCHEMAS.items()
        }
        return Trace(
            source=self._pieces.path,
            meta=_meta(frame, base_ns, len(found["kernels"])),
            strings=self._strings.list,
            problems=[text if n == 1 else f"{text} ({n} times)" for text, n in self.problems.items()],
            truncated=self._pieces.cut is not None,
            **found,
        )

    def _fill_geometry(self) -> None:
        """ROCm tells grid, block and shared memory at the call that launched; a kernel's own come first."""
        if not self._geometry:
            return
        told = np.array([(key, *sizes) for key, sizes in sorted(self._geometry.items())], dtype=np.int64)
        for columns in self._chunks["kernels"]:
            at = np.minimum(np.searchsorted(told[:, 0], columns["correlation"]), len(told) - 1)
            known = (told[at, 0] == columns["correlation"]) & (columns["kind"] == tables.KERNEL)
            for place, name in enumerate(_GEOMETRY, start=1):
                columns[name] = np.where(known & (columns[name] < 0), _int32(told[at, place]), columns[name])

    def _add(self, events: Iterable[Any]) -> None:
        rows: dict[str, list[Any]] = defaultdict(list)
        for event in events:
            rows[self._table_of[event.cat]].append(event)
        # Times first: if they are too large, nothing of the piece has been added.
        timed = {table: self._timed(rows[table]) for table in ("kernels", "ops", "runtime", "ranges")}
        self._add_gpu(*timed["kernels"])
        self._add_ops(*timed["ops"])
        self._add_runtime(*timed["runtime"])
        self._add_ranges(*timed["ranges"])
        self._add_names([event for event in rows["names"] if event.ph == "M"])

    def _decode(self, piece: Piece) -> Sequence[Any]:
        try:
            return self._decode_list(piece.text)
        except (ValueError, RecursionError):
            return self._decode_plainly(piece)

    def _decode_list(self, text: bytes) -> Sequence[Any]:
        document = b"[" + text + b"]"
        found: Sequence[Any] = (_EXACT_LIST if self._exact else _FLOAT_LIST).decode(document)
        return found

    def _decode_plainly(self, piece: Piece) -> Sequence[Any]:
        """Find the events one by one, keep what is sound, and give back what is not part of the list."""
        if inside_string(piece.text) and self._pieces.cut_with_care(piece):
            return []
        found = elements(piece.text)
        end = found.spans[-1][1] if found.spans else 0
        if end < len(piece.text):
            self._pieces.give_back(end)
        if found.stray >= 0:
            self._damaged("text that is no event lies between events", piece.at + found.stray)
        if end < len(piece.text):
            try:
                return self._decode_list(piece.text[:end])
            except (ValueError, RecursionError):
                pass
        one = [self._decode_one(piece.text[a:b], piece.at + a) for a, b in found.spans]
        return [event for event in one if event is not None]

    def _decode_one(self, text: bytes, at: int) -> Any:
        try:
            return (_EXACT_ONE if self._exact else _FLOAT_ONE).decode(text)
        except (ValueError, RecursionError):
            loose = self._decode_loosely(text, at)
            return None if loose is None else self._coerce(loose, _ExactEvent if self._exact else _Event)

    def _decode_loosely(self, text: bytes, at: int) -> dict[str, Any] | None:
        try:
            decoded = text.decode("utf-8", "replace")
            event: dict[str, Any] = json.loads(
                decoded, strict=False, parse_float=Decimal, parse_constant=lambda _: None
            )
        except (ValueError, RecursionError, InvalidOperation):
            self._damaged("an event is not JSON", at)
            return None
        self.problems[ODD] += 1
        return event

    def _coerce(self, found: dict[str, Any], kind: type[_S]) -> _S:
        """A struct of the fields that convert, each on its own; the others keep their defaults."""
        kept: dict[str, Any] = {}
        for field in msgspec.structs.fields(kind):
            value = found.get(field.encode_name)
            if field.type is _Args and isinstance(value, dict):
                kept[field.name] = self._coerce(value, _Args)
            elif value is not None and field.type is not _Args:
                try:
                    kept[field.name] = _convert(value, field.type)
                except (ValueError, TypeError, OverflowError, InvalidOperation):
                    self.problems[f"odd {field.encode_name!r} values were left out"] += 1
        return kind(**kept)

    def _damaged(self, what: str, at: int) -> None:
        if not self._pieces.salvage:
            raise self._pieces.bad(f"the trace is damaged: {what}", at)
        self.problems[f"{what}: left out"] += 1

    def _add_gpu(self, events: list[Any], columns: dict[str, np.ndarray]) -> None:
        if not events:
            return
        args = list(map(_ARGS, events))
        columns["kind"] = np.fromiter(map(self._kind_of.__getitem__, map(_CAT, events)), np.int8, len(events))
        device, stream = self._ints(args, "device"), self._ints(args, "stream")
        columns["device"] = _int32(np.where(device < 0, columns.pop("pid"), device))
        columns["stream"] = np.where(stream < 0, columns.pop("tid"), stream)
        columns["correlation"] = self._ints(args, "correlation")
        columns["external_id"] = self._ints(args, "external_id")
        columns["bytes"] = self._ints(args, "bytes_")
        for name in ("grid", "block"):
            sizes = self._integers(chain.from_iterable(map(attrgetter(name), args)), 3 * len(args))
            for index, axis in enumerate("xyz"):
                columns[f"{name}_{axis}"] = _int32(sizes[index::3])
        for name in ("smem_bytes", "regs"):
            columns[name] = _int32(self._ints(args, name))
        self._append("kernels", columns, events)
        self._add_collectives("collectives", "kernel", "kernels", args)

    def _add_collectives(self, table: str, row: str, of: str, args: list[_Args]) -> None:
        """Rows for those of the last `args` of the table `of` that tell a collective."""
        index = list(compress(range(len(args)), map(attrgetter("collective"), args)))
        if not index:
            return
        told, first = [args[i] for i in index], self._num_rows[of] - len(args)
        columns = {row: np.array(index, dtype=np.int64) + first}
        for name in ("in_nelems", "out_nelems", "group_size", "seq"):
            columns[name] = self._ints(told, name)
        for name in ("collective", "dtype", "pg_name", "pg_desc", "pg_ranks"):
            columns[f"{name}_id"] = self._texts(told, attrgetter(name))
        for name in ("in_split", "out_split"):
            columns[f"{name}_id"] = self._raws(told, name)
        self._append(table, columns, told)

    def _add_ops(self, events: list[Any], columns: dict[str, np.ndarray]) -> None:
        if not events:
            return
        args = list(map(_ARGS, events))
        columns["external_id"] = self._ints(args, "external_id")
        columns["rf_id"] = self._ints(args, "rf_id")
        columns["sequence"] = self._ints(args, "sequence")
        for name in ("dims", "types", "strides", "concrete"):
            columns[f"{name}_id"] = self._raws(args, name)
        self._append("ops", columns, events)
        self._add_collectives("comm_ops", "op", "ops", args)

    def _add_runtime(self, events: list[Any], columns: dict[str, np.ndarray]) -> None:
        if events:
            args = list(map(_ARGS, events))
            columns["correlation"] = self._ints(args, "correlation")
            self._append("runtime", columns, events)
            if any(map(_has_grid, args)):
                self._geometry.update(
                    (one.correlation, (*one.grid, *one.block, one.smem_bytes))
                    for one in args
                    if _has_grid(one)
                )

    def _add_ranges(self, events: list[Any], columns: dict[str, np.ndarray]) -> None:
        if events:
            args = list(map(_ARGS, events))
            columns["on_gpu"] = np.array([event.cat == "gpu_user_annotation" for event in events])
            for name in ("dims", "types"):
                columns[f"{name}_id"] = self._raws(args, name)
            self._append("ranges", columns, events)

    def _add_names(self, events: Iterable[Any]) -> None:
        """Kineto may repeat a name; the last one counts, as in the viewers."""
        for event in events:
            kind, text = event.name, event.args.labels if event.name == "process_labels" else event.args.name
            if kind in ("process_name", "process_labels", "thread_name") and bytes(text):
                tid = self._ids[event.tid] if kind == "thread_name" else 0
                name = _clean(self._value(bytes(text)))
                self._named[kind, self._ids[event.pid], tid] = self._strings[name]

    def _name_threads(self) -> None:
        threads = [(pid, tid, n) for (kind, pid, tid), n in self._named.items() if kind == "thread_name"]
        pids = dict.fromkeys(pid for kind, pid, _ in self._named if kind != "thread_name")
        names = [
            (pid, *(self._named.get((kind, pid, 0), -1) for kind in ("process_name", "process_labels")))
            for pid in pids
        ]
        for table, rows in (("threads", threads), ("processes", names)):
            columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
            self._chunks[table] = [dict(zip(tables.SCHEMAS[table], columns, strict=True))]

    def _append(self, table: str, columns: dict[str, np.ndarray], rows: Sequence[Any]) -> None:
        self._chunks[table].append(columns)
        self._num_rows[table] += len(rows)

    def _timed(self, events: list[Any]) -> tuple[list[Any], dict[str, np.ndarray]]:
        """The events that have a time, and the columns that every table has."""
        if list(map(_PH, events)).count("X") < len(events):
            events = [event for event in events if event.ph == "X"]
        if not events:
            return [], {}
        ts_ns, known = self._starts_ns(events)
        if not known.all():
            self.problems["events without a readable ts were left out"] += int((~known).sum())
            events = [event for event, is_known in zip(events, known, strict=True) if is_known]
            ts_ns = ts_ns[known]
        dur_ns, known = float_us_to_ns(np.fromiter(map(_DUR, events), np.float64, len(events)))
        odd = ~known | (dur_ns < 0)
        if odd.any():
            self.problems["events without a readable dur count as 0 long"] += int(odd.sum())
            dur_ns[odd] = 0
        return events, {
            "ts_ns": ts_ns,
            "dur_ns": dur_ns,
            "pid": self._places(events, attrgetter("pid")),
            "tid": self._places(events, attrgetter("tid")),
            "name_id": self._texts(events, _NAME),
        }

    def _starts_ns(self, events: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        if self._exact:
            return digits_us_to_ns(b"\0".join(map(_TS, events)).split(b"\0"))
        times_us = np.fromiter(map(_TS, events), np.float64, len(events))
        if (times_us >= FLOAT_EXACT_US).any():
            raise _TooLarge
        return float_us_to_ns(times_us)

    def _texts(self, rows: Sequence[Any], text_of: Callable[[Any], str]) -> np.ndarray:
        return np.fromiter(map(self._strings.__getitem__, map(text_of, rows)), np.int32, len(rows))

    def _raws(self, args: Sequence[_Args], name: str) -> np.ndarray:
        # JSON holds no NUL. Joining and splitting is five times faster than bytes() of each.
        texts = b"\0".join(map(attrgetter(name), args)).split(b"\0")
        return np.fromiter(map(self._raw_ids.__getitem__, texts), np.int32, len(args))

    def _places(self, events: Sequence[Any], place_of: Callable[[Any], int | str]) -> np.ndarray:
        """A pid or tid: its number, or for a text -2 minus the text's id."""
        return np.fromiter(map(self._ids.__getitem__, map(place_of, events)), np.int64, len(events))

    def _ints(self, args: Sequence[_Args], name: str) -> np.ndarray:
        values = attrgetter(name)
        try:
            return np.fromiter(map(values, args), np.int64, len(args))
        except (OverflowError, ValueError, TypeError):
            return self._integers(map(values, args), len(args))

    def _integers(self, values: Iterable[int | str], count: int) -> np.ndarray:
        found = [value if isinstance(value, int) and value in _INT64 else None for value in values]
        if None in found:
            self.problems["ids that are no 64-bit numbers count as unknown"] += 1
        return np.array([-1 if value is None else value for value in found], dtype=np.int64)

    def _text_of_raw(self, raw: bytes) -> int:
        """Lists are kept as compact JSON, so that the layout of a file does not make two of one shape."""
        if not raw:
            return -1
        value = self._value(raw)
        try:
            return self._strings[msgspec.json.encode(value).decode()]
        except (ValueError, RecursionError):
            return self._strings[json.dumps(value)]

    def _value(self, raw: bytes) -> Any:
        """A JSON value that the decoder has skipped over, and so not looked into."""
        try:
            return msgspec.json.decode(raw)
        except (ValueError, RecursionError):
            pass
        try:
            value = json.loads(raw.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            value = None
        self.problems[ODD] += 1
        return value

    def _number_id(self, value: int | str) -> int:
        if isinstance(value, int) and value in _INT64:
            return value
        return -2 - self._strings[str(value)]


def float_us_to_ns(times_us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds with up to three decimals (n,) as exact int64 ns (n,), and which were finite (n,).

    Exact below FLOAT_EXACT_US: the whole part is set aside before scaling, so no digit is rounded away.
    """
    known = np.isfinite(times_us) & (np.abs(times_us) < FLOAT_EXACT_US)
    times_us = np.where(known, times_us, 0.0)
    whole = np.floor(times_us)
    return whole.astype(np.int64) * 1000 + np.rint((times_us - whole) * 1000).astype(np.int64), known


def digits_us_to_ns(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """JSON numbers of microseconds (n,) as exact int64 ns (n,), and which could be read (n,).

    All of them at once if each has three decimals, or none; else one by one.
    """
    fixed = _fixed_point(texts)
    if fixed is not None:
        return fixed, np.ones(len(texts), dtype=bool)
    exact = [_decimal_ns(text) for text in texts]
    known = np.array([ns is not None for ns in exact], dtype=bool)
    return np.array([ns or 0 for ns in exact], dtype=np.int64), known


def _fixed_point(texts: Sequence[bytes]) -> np.ndarray | None:
    joined = b",".join(texts)
    marks = np.frombuffer(joined + b",", dtype=np.uint8)
    points, ends = np.flatnonzero(marks == ord(".")), np.flatnonzero(marks == ord(","))
    lengths = np.diff(ends, prepend=-1) - 1
    if len(ends) != len(texts) or lengths.min() < 1 or lengths.max() > 18 + (len(points) > 0):
        return None
    if len(points) and (len(points) != len(ends) or (ends - points != 4).any()):
        return None
    digits = joined.replace(b".", b"")
    if not digits.replace(b",", b"").isdigit():
        return None
    found = np.array(digits.split(b","), dtype="S18").astype(np.int64)
    scale = 1 if len(points) else 1000
    return found * scale if (found < 2**62 // scale).all() else None


def _decimal_ns(text: bytes) -> int | None:
    try:
        time_us = Decimal(text.decode())
    except (InvalidOperation, UnicodeDecodeError):
        return None
    if not time_us.is_finite() or abs(time_us) > 2**52:
        return None
    return int((time_us * 1000).to_integral_value())


def _int32(values: np.ndarray) -> np.ndarray:
    clipped: np.ndarray = np.clip(values, -(2**31), 2**31 - 1).astype(np.int32)
    return clipped


def _clean(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _convert(value: Any, kind: Any) -> Any:
    if kind is str:
        return _clean(value)
    if kind is msgspec.Raw:
        return msgspec.Raw(_ENCODER.encode(value))
    if kind is float:
        return float(value)
    return msgspec.convert(value, kind, strict=False)


def _decode_frame(pieces: EventPieces, problems: Counter[str]) -> dict[str, Any]:
    try:
        return _frame_of(pieces.frame)
    except (ValueError, RecursionError) as error:
        if not pieces.salvage:
            raise pieces.bad(f"what stands around traceEvents is not JSON ({error})", 0) from error
    pieces.cut = pieces.cut or "what follows traceEvents is not JSON"
    problems[
        "what stands around traceEvents is not JSON: some of rank, base time and versions are missing"
    ] += 1
    try:
        return _frame_of(pieces.header + b"]}")
    except (ValueError, RecursionError):
        return {}


def _frame_of(text: bytes) -> dict[str, Any]:
    decoded = text.decode("utf-8", "replace")
    frame: dict[str, Any] = json.loads(decoded, strict=False, parse_constant=lambda _: None)
    return frame


def _meta(frame: dict[str, Any], base_ns: int, num_gpu_rows: int) -> TraceMeta:
    names = tuple(str(device.get("name", "")) for device in _items(frame.get("deviceProperties")))
    info = frame.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    groups = tuple(_group(g) for g in _items(info.get("pg_config")))
    sizes = [len(group.ranks) for group in groups]
    return TraceMeta(
        rank=_count(info.get("rank")),
        world_size=_count(info.get("world_size")) or (max(sizes) if sizes else None),
        backend=_text(info.get("backend")),
        vendor=_vendor(frame, names) if names or num_gpu_rows else "none",
        devices=names,
        base_ns=base_ns,
        nccl_version=_text(info.get("nccl_version")),
        torch_version=_text(frame.get("torch_version")),
        cuda_version=_number(frame.get("cuda_runtime_version")),
        hip_version=_number(frame.get("hip_runtime_version")),
        process_groups=groups,
        host=_text(frame.get("host_name")),
        num_sms=tuple(_num_sms(device) for device in _items(frame.get("deviceProperties"))),
    )


def _num_sms(device: dict[str, Any]) -> int:
    return _count(device.get("numSms", device.get("multiProcessorCount"))) or 0


def _vendor(frame: dict[str, Any], devices: tuple[str, ...]) -> str:
    amd = any(key.startswith(("hip_", "roctracer")) for key in frame) or any(
        "AMD" in name for name in devices
    )
    return "amd" if amd else "nvidia"


def _group(found: dict[str, Any]) -> ProcessGroup:
    ranks = found.get("ranks")
    if isinstance(ranks, str):  # some versions write the list as text
        ranks = [int(digits) for digits in ranks.strip("[] ").split(",") if digits.strip().isdigit()]
    return ProcessGroup(
        name=_text(found.get("pg_name")) or "",
        description=_text(found.get("pg_desc")) or "",
        backend=_text(found.get("backend_config")) or "",
        ranks=tuple(rank for rank in (ranks if isinstance(ranks, list) else []) if isinstance(rank, int)),
    )


def _items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    """A number of ranks that can be meant; a hostile one must not make anybody list a billion ranks."""
    number = _number(value)
    return number if number is not None and 0 <= number < 1 << 20 else None


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, (str, int, float)) else None
