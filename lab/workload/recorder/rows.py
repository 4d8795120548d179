"""Rows of one rank: facts of a tensor, and the file that keeps them; checksums stay on their device for long.

Beside a checksum of all bits a row may have the L2 norm and the largest magnitude of all elements, their sums
under random signs (which elements that swap places or change their sign move, and no norm shows), and some
elements at places that depend on their number alone.
"""

from __future__ import annotations

import gzip
import math
import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from lab.errors import StorageError
from lab.workload.recorder.bits import KEY, Sums, dense, mix64
from lab.workload.recorder.format import FORMAT

MOST_ROWS = 400_000  # of a step
SAMPLES = 32
SIGNS = 4  # sums under random signs
CHUNK = 1 << 22  # elements that are summed at once
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
UNINDEXED = ("torch.uint16", "torch.uint32", "torch.uint64")  # no GPU picks elements of these
Slot = tuple[torch.device, int]  # where a checksum will be


class Rows:
    """Collects and writes the rows of one rank."""

    def __init__(self, path: Path, meta: dict[str, Any], *, packed: bool) -> None:
        self._path, self._part = path, path.with_name(f"{path.name}.part") if packed else path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            raw = self._part.open("wb")
            self._file: Any = gzip.GzipFile(path.name, "wb", 4, raw) if packed else raw
        except OSError as error:
            raise StorageError(f"cannot write the recording: {error.strerror}", location=path) from error
        self._raw = raw
        self._line({"meta": {"format": FORMAT, "checksum": "words64", **meta}})
        self._waiting: list[dict[str, Any]] = []
        self._sums: dict[torch.device, Sums] = {}
        self.lock = threading.RLock()
        self.unseen: Counter[str] = Counter()  # tensors without dense bits, by kind
        self.steps = self.left_out = self.written = 0

    def bits(self, tensors: Sequence[Tensor]) -> list[Slot | None]:
        """Where the checksum of each tensor will be; None for one without dense bits, which is counted."""
        slots: list[Slot | None] = [None] * len(tensors)
        groups: dict[torch.device, list[tuple[int, Tensor]]] = {}
        for index, tensor in enumerate(tensors):
            if (plain := dense(tensor)) is None:
                self.unseen[f"{type(tensor).__name__} ({tensor.dtype}, {tensor.layout})"] += 1
            else:
                groups.setdefault(plain.device, []).append((index, plain))
        for device, group in groups.items():
            sums = self._sums.setdefault(device, Sums(device))
            for (index, _), slot in zip(group, sums.add([plain for _, plain in group]), strict=True):
                slots[index] = (device, slot)
        return slots

    def add(self, row: dict[str, Any]) -> dict[str, Any]:
        """Keep a row until `flush`; its `ck` and `in_ck` are what `bits` gave, or texts."""
        with self.lock:
            if len(self._waiting) < MOST_ROWS:
                self._waiting.append(row)
            else:
                self.left_out += 1
        return row

    def flush(self, step: int) -> None:
        """Write what waits: one copy of checksums from each device."""
        with self.lock:
            texts = {device: sums.read() for device, sums in self._sums.items()}

            def text(slot: Slot | str | None) -> str:
                return (slot or "") if isinstance(slot, (str, type(None))) else texts[slot[0]][slot[1]]

            for row in self._waiting:
                row["ck"] = text(row["ck"])
                if "in_ck" in row:
                    row["in_ck"] = [text(slot) for slot in row["in_ck"]]
                self._line(row)
            self.written += len(self._waiting)
            self._waiting, self.steps = [], step

    def close(self, **end: Any) -> None:
        """Write the mark that nothing is cut off."""
        facts = {"rows": self.written, "steps": self.steps, "left_out": self.left_out, "unseen": self.unseen}
        self._line({"end": {**facts, **end}})
        self._file.close()
        self._raw.close()  # a gzip file leaves it open
        if self._part != self._path:
            os.replace(self._part, self._path)

    def _line(self, value: Any) -> None:
        self._file.write(msgspec.json.encode(value) + b"\n")


def facts(tensor: Tensor, rank: int = 0, world: int = 1) -> dict[str, Any]:
    """Shape, norms of all elements, counts of NaN and infinity, sampled elements; of a DTensor its part.

    With several ranks also what lets parts be added up: positions within the whole tensor.
    """
    plain = dense(tensor)
    if plain is None:
        return {}
    flat = plain.reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    size = flat.numel()
    positions = sample_places(size)
    words = flat.view(_WORDS[flat.element_size()]) if str(flat.dtype) in UNINDEXED else flat
    picked = words[torch.tensor(positions, device=flat.device)].view(flat.dtype) if size else flat
    parts = _parts(tensor, plain, flat, rank, world) if world > 1 else {}
    samples = {"sample_at": positions, "sample": picked.double().tolist()}
    return {**_shape(plain), **samples, **_norms(flat), **parts}


def _shape(tensor: Tensor) -> dict[str, Any]:
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}


def described(tensor: Tensor) -> dict[str, Any]:
    """Shape and type alone; of a DTensor those of its part."""
    local = getattr(tensor, "_local_tensor", None)
    return _shape(tensor if local is None else local)


def _norms(flat: Tensor) -> dict[str, Any]:
    """L2 norm, largest magnitude, sums under random signs and counts over all elements, by parts: all in
    float64 may not fit."""
    squares, largest, nan, inf = 0.0, 0.0, 0, 0
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK].double()
        squares += float(part.square().sum())
        largest = max(largest, float(part.abs().max()))
        nan, inf = nan + int(part.isnan().sum()), inf + int(part.isinf().sum())
    shape = (flat.numel(),)
    return {
        "l2": math.sqrt(squares) if squares >= 0 else squares,
        "absmax": math.nan if nan else largest,
        "nan": nan,
        "inf": inf,
        "signed": signed_sums(flat, shape, shape, (0,)),
    }


def signed_sums(
    flat: Tensor, shape: Sequence[int], full_shape: Sequence[int], offset: Sequence[int]
) -> list[float]:
    """Sums of elements under SIGNS signs that depend on their place in the whole tensor alone.

    flat: the elements of a part of `shape` that begins at `offset` (per dimension) of a tensor of shape
    `full_shape`; sums of parts add up to those of the whole.
    """
    sums = [0.0] * SIGNS
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK].double()
        left = torch.arange(start, start + part.numel(), dtype=torch.int64, device=part.device)
        place, stride = torch.zeros_like(left), 1
        for length, whole_length, begin in zip(shape[::-1], full_shape[::-1], offset[::-1], strict=True):
            place += (left % length + begin) * stride
            left, stride = torch.div(left, length, rounding_mode="floor"), stride * whole_length
        bits = mix64((place + 1) * KEY)
        for sign in range(SIGNS):
            sums[sign] += float(torch.where((bits >> (40 + sign)) & 1 == 0, part, -part).sum())
    return sums


def _parts(tensor: Tensor, plain: Tensor, flat: Tensor, rank: int, world: int) -> dict[str, Any]:
    """What this rank's part is of the whole tensor: by placements, else for each dimension it may be of."""
    shape = list(plain.shape) + ([2] if plain.is_complex() else [])
    if (placements := getattr(tensor, "placements", None)) is not None:
        mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
        coordinate, full_shape = list(mesh.get_coordinate() or ()), list(tensor.shape)
        names = [_placement(placement) for placement in placements]
        offset = part_offset(full_shape, names, list(mesh.shape), coordinate)
        facts_of_part = {"place": names, "coordinate": coordinate, "full_shape": full_shape}
        if offset is None or plain.is_complex():
            return facts_of_part
        return {**facts_of_part, "signed": signed_sums(flat, shape, full_shape, offset)}
    sharded = []
    for dimension, length in enumerate(shape):
        full_shape, offset = list(shape), [0] * len(shape)
        full_shape[dimension], offset[dimension] = length * world, rank * length
        sharded.append(signed_sums(flat, shape, full_shape, offset))
    return {"sharded": sharded}


def _placement(placement: Any) -> str:
    """`S0`, `R`, `P` for a sum; any other in torch's words."""
    kind = type(placement).__name__
    if kind == "Shard":
        return f"S{placement.dim}"
    is_sum = kind in ("Partial", "_Partial") and getattr(placement, "reduce_op", "sum") == "sum"
    return "P" if is_sum else "R" if kind == "Replicate" else str(placement)[:40]


def part_offset(
    full_shape: Sequence[int], placements: Sequence[str], mesh: Sequence[int], coordinate: Sequence[int]
) -> list[int] | None:
    """Where a part begins, per dimension, by the rule of torch.chunk; None where the rule is not known."""
    shape, offset = list(full_shape), [0] * len(full_shape)
    for name, ranks, index in zip(placements, mesh, coordinate, strict=True):
        if name in ("R", "P"):
            continue
        if name[0] != "S" or not name[1:].isdecimal():
            return None
        dimension = int(name[1:])
        chunk = -(-shape[dimension] // ranks)
        begin = min(chunk * index, shape[dimension])
        offset[dimension] += begin
        shape[dimension] = min(chunk, shape[dimension] - begin)
    return offset


def sample_places(size: int) -> list[int]:
    """Up to SAMPLES places, the same in every run for a tensor of `size` elements."""
    if size <= SAMPLES:
        return list(range(size))
    return sorted({((2 * k + 1) * 2654435761 % 2**32) * size >> 32 for k in range(SAMPLES)})
