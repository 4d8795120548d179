"""Kineto traces (torch.profiler's JSON, plain or gzip) as columns, in one pass and with bounded memory.

The seam: `pieces` yields text, `_Columns.feed` turns one text into numpy columns; a native scanner can
replace `feed` alone. The format is that of pytorch/kineto, `libkineto/src/output_json.cpp`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from lab.trace import tables
from lab.trace.pieces import PIECE_BYTES, EventPieces, Piece, elements
from lab.trace.tables import ProcessGroup, Table, Trace, TraceMeta

GPU_KINDS = {"kernel": tables.KERNEL, "gpu_memcpy": tables.MEMCPY, "gpu_memset": tables.MEMSET}
TABLE_OF = {
    **dict.fromkeys(GPU_KINDS, "kernels"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver"), "runtime"),  # on ROCm too
    **dict.fromkeys(("user_annotation", "gpu_user_annotation"), "ranges"),
    "cpu_op": "ops",
}

# Below this many microseconds two texts with three decimals never share a float64: 2^43 us is 101 days, and
# Kineto moves its base every quarter of a year. Above it times are decoded as decimals instead.
FLOAT_EXACT_US = float(2**43)

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
    device: int | str = -1  # HIP runtime calls write some of these as text
    stream: int | str = -1
    correlation: int = -1
    bytes_: int | str = msgspec.field(name="bytes", default=-1)
    grid: tuple[int, int, int] = _NO_SIZE
    block: tuple[int, int, int] = _NO_SIZE
    collective: str = msgspec.field(name="Collective name", default="")
    in_nelems: int = msgspec.field(name="In msg nelems", default=-1)
    out_nelems: int = msgspec.field(name="Out msg nelems", default=-1)
    group_size: int = msgspec.field(name="Group size", default=-1)
    dtype: str = ""
    pg_name: str = msgspec.field(name="Process Group Name", default="")
    pg_desc: str = msgspec.field(name="Process Group Description", default="")
    pg_ranks: str = msgspec.field(name="Process Group Ranks", default="")
    seq: int = msgspec.field(name="Seq", default=-1)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NO_RAW)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NO_RAW)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=_NO_RAW)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_RAW)


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
    """The same, with times too large for a float64."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Decimal = Decimal("NaN")
    dur: Decimal = Decimal("NaN")
    args: _Args = _NO_ARGS


_FLOAT_LIST = msgspec.json.Decoder(list[_Event])
_EXACT_LIST = msgspec.json.Decoder(list[_ExactEvent])
_FLOAT_ONE = msgspec.json.Decoder(_Event)
_EXACT_ONE = msgspec.json.Decoder(_ExactEvent)
_ENCODER = msgspec.json.Encoder(decimal_format="number")


class _Strings(dict[str, int]):
    """Text -> id, given out on first sight; "" is -1."""

    def __init__(self) -> None:
        super().__init__({"": -1})
        self.list: list[str] = []

    def __missing__(self, text: str) -> int:
        self[text] = len(self.list)
        self.list.append(text)
        return self[text]


class _Lookup(dict[Any, int]):
    """A cache that computes each value once."""

    def __init__(self, compute: Callable[[Any], int]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: Any) -> int:
        value = self[key] = self._compute(key)
        return value


class _Columns:
    """Bytes in, columns out: `feed` takes texts of whole events, `finish` returns the tables."""

    def __init__(self, pieces: EventPieces) -> None:
        self.problems: Counter[str] = Counter()
        self._pieces = pieces
        self._exact = False
        self._chunks: dict[str, list[dict[str, np.ndarray]]] = defaultdict(list)
        self._num_gpu_rows = 0
        self._strings = _Strings()
        self._ids = _Lookup(self._number_id)
        self._raw_ids = _Lookup(self._text_of_raw)

    def feed(self, piece: Piece) -> None:
        """Decode one piece and append its rows; raises BadDataError for text that is not JSON."""
        rows: dict[str, list[Any]] = defaultdict(list)
        for event in self._decode(piece):
            if event.ph == "X" and event.cat in TABLE_OF:
                rows[TABLE_OF[event.cat]].append(event)
        self._add_gpu(rows["kernels"])
        self._add_ops(rows["ops"])
        self._add_runtime(rows["runtime"])
        self._add_ranges(rows["ranges"])

    def finish(self, frame: dict[str, Any]) -> Trace:
        """The trace, once every piece has been fed."""
        base_ns = _number(frame.get("baseTimeNanoseconds"))
        base_ns = base_ns if base_ns is not None and 0 <= base_ns < 2**62 else 0
        for chunks in self._chunks.values():
            for chunk in chunks:
                if "ts_ns" in chunk:
                    chunk["ts_ns"] += base_ns
        cut = self._pieces.cut
        return Trace(
            source=self._pieces.path,
            kernels=self._table("kernels", tables.KERNEL_COLUMNS),
            ops=self._table("ops", tables.OP_COLUMNS),
            runtime=self._table("runtime", tables.RUNTIME_COLUMNS),
            ranges=self._table("ranges", tables.RANGE_COLUMNS),
            collectives=self._table("collectives", tables.COLLECTIVE_COLUMNS),
            meta=_meta(frame, base_ns, self._num_gpu_rows),
            strings=self._strings.list,
            problems=[text if n == 1 else f"{text} ({n} times)" for text, n in self.problems.items()],
            truncated=cut is not None,
        )

    def _table(self, name: str, schema: tables.Schema) -> Table:
        return tables.concat(self._chunks.pop(name, []), schema)

    def _decode(self, piece: Piece) -> Sequence[Any]:
        try:
            return self._decode_list(piece.text)
        except (ValueError, RecursionError):
            return self._decode_plainly(piece)

    def _decode_list(self, text: bytes) -> Sequence[Any]:
        document = b"[" + text + b"]"
        if not self._exact:
            events = _FLOAT_LIST.decode(document)
            self._exact = any(event.ts >= FLOAT_EXACT_US for event in events)
            if not self._exact:
                return events
        return _EXACT_LIST.decode(document)

    def _decode_plainly(self, piece: Piece) -> Sequence[Any]:
        """Find the events one by one, keep what is sound, and give back what is not part of the list."""
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
        self.problems["odd events were read with replaced characters or without their odd fields"] += 1
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

    def _add_gpu(self, events: list[Any]) -> None:
        events, columns = self._timed(events)
        if not events:
            return
        args = [event.args for event in events]
        columns["kind"] = np.array([GPU_KINDS[event.cat] for event in events], dtype=np.int8)
        device, stream = self._ints([a.device for a in args]), self._ints([a.stream for a in args])
        columns["device"] = _int32(np.where(device < 0, columns.pop("pid"), device))
        columns["stream"] = np.where(stream < 0, columns.pop("tid"), stream)
        columns["correlation"] = self._ints([a.correlation for a in args])
        columns["external_id"] = self._ints([a.external_id for a in args])
        columns["bytes"] = self._ints([a.bytes_ for a in args])
        for name, sizes in (("grid", [a.grid for a in args]), ("block", [a.block for a in args])):
            for axis, size in zip("xyz", zip(*sizes, strict=True), strict=True):
                columns[f"{name}_{axis}"] = _int32(self._ints(size))
        self._chunks["kernels"].append(columns)
        self._add_collectives([(i, a) for i, a in enumerate(args) if a.collective])
        self._num_gpu_rows += len(events)

    def _add_collectives(self, found: list[tuple[int, _Args]]) -> None:
        if not found:
            return
        args = [a for _, a in found]
        ids = self._strings
        self._chunks["collectives"].append(
            {
                "kernel": np.array([i for i, _ in found], dtype=np.int64) + self._num_gpu_rows,
                "collective_id": np.array([ids[a.collective] for a in args], dtype=np.int32),
                "in_nelems": self._ints([a.in_nelems for a in args]),
                "out_nelems": self._ints([a.out_nelems for a in args]),
                "dtype_id": np.array([ids[a.dtype] for a in args], dtype=np.int32),
                "group_size": self._ints([a.group_size for a in args]),
                "pg_name_id": np.array([ids[a.pg_name] for a in args], dtype=np.int32),
                "pg_desc_id": np.array([ids[a.pg_desc] for a in args], dtype=np.int32),
                "pg_ranks_id": np.array([ids[a.pg_ranks] for a in args], dtype=np.int32),
                "seq": self._ints([a.seq for a in args]),
            }
        )

    def _add_ops(self, events: list[Any]) -> None:
        events, columns = self._timed(events)
        if not events:
            return
        columns["external_id"] = self._ints([event.args.external_id for event in events])
        columns |= self._shapes(events)
        columns["strides_id"] = self._raws([event.args.strides for event in events])
        columns["concrete_id"] = self._raws([event.args.concrete for event in events])
        self._chunks["ops"].append(columns)

    def _add_runtime(self, events: list[Any]) -> None:
        events, columns = self._timed(events)
        if events:
            columns["correlation"] = self._ints([event.args.correlation for event in events])
            self._chunks["runtime"].append(columns)

    def _add_ranges(self, events: list[Any]) -> None:
        events, columns = self._timed(events)
        if events:
            columns["on_gpu"] = np.array([event.cat == "gpu_user_annotation" for event in events])
            self._chunks["ranges"].append(columns | self._shapes(events))

    def _shapes(self, events: list[Any]) -> dict[str, np.ndarray]:
        return {
            "dims_id": self._raws([event.args.dims for event in events]),
            "types_id": self._raws([event.args.types for event in events]),
        }

    def _timed(self, events: list[Any]) -> tuple[list[Any], dict[str, np.ndarray]]:
        """The events that have a time, and the columns that every table has."""
        ts_ns, known = self._ns([event.ts for event in events])
        if not known.all():
            self.problems["events without a readable ts were left out"] += int((~known).sum())
            events = [event for event, is_known in zip(events, known, strict=True) if is_known]
            ts_ns = ts_ns[known]
        dur_ns, known = self._ns([event.dur for event in events])
        odd = ~known | (dur_ns < 0)
        if odd.any():
            self.problems["events without a readable dur count as 0 long"] += int(odd.sum())
            dur_ns[odd] = 0
        ids, names = self._ids, self._strings
        return events, {
            "ts_ns": ts_ns,
            "dur_ns": dur_ns,
            "pid": np.array([ids[event.pid] for event in events], dtype=np.int64),
            "tid": np.array([ids[event.tid] for event in events], dtype=np.int64),
            "name_id": np.array([names[event.name] for event in events], dtype=np.int32),
        }

    def _ns(self, times_us: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Microseconds as int64 nanoseconds (n,) and which of them could be read (n,)."""
        if self._exact:
            exact = [_decimal_ns(time) for time in times_us]
            known = np.array([ns is not None for ns in exact], dtype=bool)
            return np.array([ns or 0 for ns in exact], dtype=np.int64), known
        return float_us_to_ns(np.array(times_us, dtype=np.float64))

    def _ints(self, values: Sequence[int | str]) -> np.ndarray:
        try:
            return np.array(values, dtype=np.int64)
        except (OverflowError, ValueError):
            self.problems["ids that are no 64-bit numbers count as unknown"] += 1
            return np.array([v if isinstance(v, int) and v in _INT64 else -1 for v in values], dtype=np.int64)

    def _raws(self, values: list[msgspec.Raw]) -> np.ndarray:
        ids = self._raw_ids
        return np.array([ids[bytes(value)] for value in values], dtype=np.int32)

    def _text_of_raw(self, raw: bytes) -> int:
        """Lists are kept as compact JSON, so that the layout of a file does not make two of one shape."""
        return self._strings[msgspec.json.encode(msgspec.json.decode(raw)).decode()] if raw else -1

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


def _decimal_ns(time_us: Decimal) -> int | None:
    if not time_us.is_finite() or abs(time_us) > 2**52:
        return None
    return int((time_us * 1000).to_integral_value())


def _int32(values: np.ndarray) -> np.ndarray:
    clipped: np.ndarray = np.clip(values, -(2**31), 2**31 - 1).astype(np.int32)
    return clipped


def _convert(value: Any, kind: Any) -> Any:
    if kind is str:
        return str(value).encode("utf-8", "replace").decode()
    if kind is msgspec.Raw:
        return msgspec.Raw(_ENCODER.encode(value))
    if kind in (float, Decimal):
        return kind(value)
    return msgspec.convert(value, kind, strict=False)


def _decode_frame(pieces: EventPieces, problems: Counter[str]) -> dict[str, Any]:
    try:
        decoded = pieces.frame.decode("utf-8", "replace")
        frame: dict[str, Any] = json.loads(decoded, strict=False, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        if not pieces.salvage:
            raise pieces.bad(f"what stands around traceEvents is not JSON ({error})", 0) from error
        problems["what stands around traceEvents is not JSON: no rank, no base time, no versions"] += 1
        return {}
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
    )


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
