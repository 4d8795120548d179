"""Text of events -> event structs, with the exact byte of what cannot be decoded."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal, InvalidOperation
from typing import Any, Generic, TypeVar

import msgspec

from lab.recordings.capture import Meta
from lab.recordings.pieces import EventPieces, Piece, elements, once


def decode_frame(pieces: EventPieces, problems: Counter[str]) -> dict[str, Any]:
    try:
        return _frame_of(pieces.frame)
    except (ValueError, RecursionError) as error:
        if not pieces.salvage:
            raise pieces.bad(f"the document around traceEvents is not JSON ({error})", 0) from error
    pieces.cut = pieces.cut or "the text after traceEvents is not JSON"
    lost = "some of rank, base time and versions are missing"
    problems[f"the document around traceEvents is not JSON: {lost}"] += 1
    try:
        return _frame_of(pieces.header + b"]}")
    except (ValueError, RecursionError):
        return {}


def _frame_of(text: bytes) -> dict[str, Any]:
    decoded = text.decode("utf-8", "replace")
    # strict=False: real files hold control characters in names.
    frame: dict[str, Any] = json.loads(
        decoded, strict=False, parse_constant=lambda _: None, object_pairs_hook=once
    )
    return frame


def meta_of(frame: dict[str, Any], base_ns: int, num_gpu_rows: int) -> Meta:
    """What the document says about its job; `base_ns` as it was added to the times."""
    devices = _items(frame.get("deviceProperties"))
    names = tuple(str(device.get("name", "")) for device in devices)
    info = frame.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    sizes = [_group_size(group) for group in _items(info.get("pg_config"))]
    return Meta(
        rank=_count_of(info.get("rank")),
        world_size=_count_of(info.get("world_size")) or (max(sizes) if sizes else None),
        backend=_text_of(info.get("backend")),
        vendor=_vendor(frame, names) if names or num_gpu_rows else "none",
        devices=names,
        base_ns=base_ns,
        nccl_version=_text_of(info.get("nccl_version")),
        torch_version=_text_of(frame.get("torch_version")),
        cuda_version=integer_of(frame.get("cuda_runtime_version")),
        hip_version=integer_of(frame.get("hip_runtime_version")),
        host=_text_of(frame.get("host_name")),
        stacks=any(frame.get(key) not in (None, 0, "0", False) for key in ("with_stack", "with_modules")),
        num_sms=tuple(_num_sms(device) for device in devices),
    )


def _num_sms(device: dict[str, Any]) -> int:
    return _count_of(device.get("numSms", device.get("multiProcessorCount"))) or 0


def _vendor(frame: dict[str, Any], devices: tuple[str, ...]) -> str:
    by_key = any(key.startswith(("hip_", "roctracer")) for key in frame)
    return "amd" if by_key or any("AMD" in name for name in devices) else "nvidia"


def _group_size(group: dict[str, Any]) -> int:
    ranks = group.get("ranks")
    if isinstance(ranks, str):  # some versions write the list as text
        return sum(digits.strip().isdigit() for digits in ranks.strip("[] ").split(","))
    return sum(isinstance(rank, int) for rank in ranks) if isinstance(ranks, list) else 0


def _items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def integer_of(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _count_of(value: Any) -> int | None:
    """The value if it is a plausible number of ranks: a hostile file must not cause a list of a billion."""
    number = integer_of(value)
    return number if number is not None and 0 <= number < 1 << 20 else None


def _text_of(value: Any) -> str | None:
    return str(value) if isinstance(value, (str, int, float)) else None


_NO_RAW = msgspec.Raw(b"")
NO_SIZE = (-1, -1, -1)
_NAN = float("nan")


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments in use, in the order Kineto writes them (the decoder is fastest that way)."""

    external_id: int = msgspec.field(name="External id", default=-1)
    sequence: int = msgspec.field(name="Sequence number", default=-1)  # links a backward op to its forward op
    rf_id: int = msgspec.field(name="Record function id", default=-1)
    device: int | str = -1  # HIP runtime calls write some of these as text
    stream: int | str = -1
    original_stream: int | str = -1  # where a viewer's lane has replaced stream
    kernel: str = ""
    correlation: int = -1
    graph: int = msgspec.field(name="graph id", default=0)  # 0: launched without a graph
    graph_node: int = msgspec.field(name="graph node id", default=0)
    regs: int = msgspec.field(name="registers per thread", default=-1)
    smem_bytes: int = msgspec.field(name="shared memory", default=-1)
    bytes_: int | str = msgspec.field(name="bytes", default=-1)
    copy_kind: str = msgspec.field(name="copy kind", default="")
    src_kind: str = msgspec.field(name="src kind", default="")
    dst_kind: str = msgspec.field(name="dst kind", default="")
    grid: tuple[int, int, int] = NO_SIZE
    block: tuple[int, int, int] = NO_SIZE
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
    dst_rank: int = msgspec.field(name="Dst Rank", default=-1)
    src_rank: int = msgspec.field(name="Src Rank", default=-1)
    group_rank: int = msgspec.field(name="Rank", default=-1)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NO_RAW)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NO_RAW)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=_NO_RAW)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_RAW)
    ev_idx: int | str = msgspec.field(name="Ev Idx", default=-1)
    on_stream: int | str = msgspec.field(name="wait_on_stream", default=-1)  # of a wait for an event
    record: int | str = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=-1)
    name: msgspec.Raw = _NO_RAW  # of a process or thread
    labels: msgspec.Raw = _NO_RAW


_NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One event; `ts` as its digits, because absolute times do not fit a float64."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: msgspec.Raw = _NO_RAW
    dur: float = _NAN
    args: Args = _NO_ARGS
    id: msgspec.Raw = _NO_RAW  # of an arrow


ODD = "odd events were read with replaced characters or without their odd fields"
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_S = TypeVar("_S", bound=msgspec.Struct)
_T = TypeVar("_T", bound=msgspec.Struct)


class EventDecoder(Generic[_S]):
    """Decodes the pieces of one file into structs of one kind."""

    def __init__(self, pieces: EventPieces, problems: Counter[str], kind: type[_S]) -> None:
        self._pieces, self._problems, self._kind = pieces, problems, kind
        self._events = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]

    def decode(self, piece: Piece) -> list[_S]:
        """The events of a piece. Raises BadDataError for text that is not JSON, except under salvage."""
        try:
            return self._events_of(piece.text)
        except (ValueError, RecursionError):
            # msgspec gives up at the first odd event: only then is the piece read event by event.
            return self._decode_one_by_one(piece)

    def _decode_one_by_one(self, piece: Piece) -> list[_S]:
        """Find the events one by one, keep those that decode, and give back what is not part of the list."""
        parts = elements(piece.text)
        end = parts.spans[-1][1] if parts.spans else 0
        # What follows the last whole event begins one of the next piece.
        if end < len(piece.text):
            self._pieces.give_back(end)
        if parts.stray >= 0:
            self._damaged("text between events that is not an event", piece.offset + parts.stray)
        if end < len(piece.text):
            try:
                return self._events_of(piece.text[:end])
            except (ValueError, RecursionError):
                pass
        events = [self._decode_one(piece.text[a:b], piece.offset + a) for a, b in parts.spans]
        return [event for event in events if event is not None]

    def _events_of(self, text: bytes) -> list[_S]:
        return self._events.decode(b"[" + text + b"]")

    def _decode_one(self, text: bytes, offset: int) -> _S | None:
        try:
            return self._events_of(text)[0]
        except (ValueError, RecursionError):
            loose = self._decode_loosely(text, offset)
            return None if loose is None else self._coerce(loose, self._kind)

    def _decode_loosely(self, text: bytes, offset: int) -> dict[str, Any] | None:
        try:
            decoded = text.decode("utf-8", "replace")
            # Decimal keeps all digits of an absolute time; float64 keeps 0.25 us of it.
            event = json.loads(decoded, strict=False, parse_float=Decimal, parse_constant=lambda _: None)
        except (ValueError, RecursionError, InvalidOperation):
            self._damaged("an event is not JSON", offset)
            return None
        if not isinstance(event, dict):
            self._damaged("an event is not an object", offset)
            return None
        self._problems[ODD] += 1
        return event

    def _coerce(self, fields: dict[str, Any], kind: type[_T]) -> _T:
        """A struct of the fields that convert, each on its own; the others keep their defaults."""
        converted: dict[str, Any] = {}
        for field in msgspec.structs.fields(kind):
            value = fields.get(field.encode_name)
            is_struct = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
            if is_struct and isinstance(value, dict):
                converted[field.name] = self._coerce(value, field.type)
            elif value is not None and not is_struct:
                try:
                    converted[field.name] = _convert(value, field.type)
                except (ValueError, TypeError, OverflowError, InvalidOperation):
                    self._problems[f"odd {field.encode_name!r} values were left out"] += 1
        return kind(**converted)

    def _damaged(self, fault: str, offset: int) -> None:
        if not self._pieces.salvage:
            raise self._pieces.bad(f"the trace is damaged: {fault}", offset)
        self._problems[f"{fault}: left out"] += 1


def clean_text(value: Any) -> str:
    """The value as text that can be written as UTF-8."""
    return str(value).encode("utf-8", "replace").decode()


def _convert(value: Any, kind: Any) -> Any:
    if kind is str:
        return clean_text(value)
    if kind is msgspec.Raw:
        return msgspec.Raw(_ENCODER.encode(value))
    if kind is float:
        return float(value)
    return msgspec.convert(value, kind, strict=False)
