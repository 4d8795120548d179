"""The file of one rank's rows; checksums stay on their device for long."""

from __future__ import annotations

import gzip
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
from lab.workload.recorder.bits import Sums, dense
from lab.workload.recorder.format import FORMAT

MOST_ROWS = 400_000  # of a step
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


def described(tensor: Tensor) -> dict[str, Any]:
    """Shape and type alone; of a DTensor those of its part."""
    local = getattr(tensor, "_local_tensor", None)
    part = tensor if local is None else local
    return {"shape": list(part.shape), "dtype": str(part.dtype).removeprefix("torch.")}
