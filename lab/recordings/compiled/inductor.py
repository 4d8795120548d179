"""What a recording says of Inductor's kernels: file, hash, launch parameters."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from lab.recordings.pieces import EventPieces, Piece, is_json

_NAME = re.compile(r"triton_(poi|red|per|tem|for|cpr|spl|unk|mm)_\w+\Z")
_CATEGORIES = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "persistent reduction",
    "tem": "template",
    "for": "foreach",
}
_HASH = re.compile(r"[a-z2-7]{8,64}\Z")
_MARK = b'"kernel_hash"'


class InductorKernel(msgspec.Struct, frozen=True):
    """One kernel as the recording describes it; "" and -1 where it does not say.

    hash is the name of its generated file without `.py`; kwargs the block sizes, as `XBLOCK=2,R0_BLOCK=2048`.
    """

    name: str
    hash: str = ""
    kwargs: str = ""
    num_warps: int = -1
    num_stages: int = -1


class _Args(msgspec.Struct):
    external_id: int = msgspec.field(name="External id", default=-1)
    kernel_hash: str = ""
    kernel_kwargs: str = ""
    num_warps: int | str = -1
    num_stages: int | str = -1


class _Event(msgspec.Struct):
    name: str = ""
    args: _Args = msgspec.field(default_factory=_Args)


def is_inductor(name: str) -> bool:
    """Whether this is the name of a Triton kernel that Inductor generated."""
    return bool(_NAME.match(name))


def name_of_category(name: str) -> str:
    """`pointwise` for `triton_poi_...`, "" for other names."""
    match = _NAME.match(name)
    return _CATEGORIES.get(match[1], match[1]) if match else ""


def read_inductor(path: Path) -> dict[int, InductorKernel]:
    """Inductor's kernels of a Kineto file by the External id of their op; only those with a file hash.

    Raises what `read_kineto` raises for a file that is not a trace.
    """
    kernels: dict[int, InductorKernel] = {}
    if not is_json(path):  # only torch.profiler records them
        return kernels
    for piece in EventPieces(path, salvage=True):
        if _MARK in piece.text:
            for event in _events(piece):
                args = event.args
                if args.external_id >= 0 and _HASH.match(args.kernel_hash):
                    kernels[args.external_id] = InductorKernel(
                        name=event.name,
                        hash=args.kernel_hash,
                        kwargs=args.kernel_kwargs,
                        num_warps=_count(args.num_warps),
                        num_stages=_count(args.num_stages),
                    )
    return kernels


def _events(piece: Piece) -> list[_Event]:
    """The events of a piece; one that does not decode hides none of the others."""
    try:
        return msgspec.json.decode(b"[" + piece.text + b"]", type=list[_Event])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        raws = msgspec.json.decode(b"[" + piece.text + b"]", type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    events = []
    for raw in raws:
        try:
            events.append(msgspec.json.decode(raw, type=_Event))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
    return events


def _count(value: int | str) -> int:
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) < 6 else -1
    return value if 0 <= value < 100_000 else -1
