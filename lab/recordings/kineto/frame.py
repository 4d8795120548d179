"""The document around traceEvents: rank, world size, devices, versions, base time."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from lab.recordings.capture import Meta
from lab.recordings.pieces import EventPieces, once


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
