"""Events of a step, in order, and the file that keeps them: one line of JSON per event, a mark at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.rooms.trials.workload.bits import Sums, dense

FORMAT = 1
MOST_EVENTS = 400_000  # of a step
NAME = "bits_rank{rank}.jsonl"


class Events:
    """Collects the events of one rank; checksums stay on their device until `flush`."""

    def __init__(self, out: Path, rank: int, head: dict[str, Any]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._file = open(out / NAME.format(rank=rank), "w", encoding="utf-8")  # noqa: SIM115  until `close`
        self._line({"head": {"format": FORMAT, "rank": rank, **head}})
        self._waiting: list[dict[str, Any]] = []
        self._sums: dict[torch.device, Sums] = {}
        self.unseen: dict[str, int] = {}
        self.steps = self.left_out = self.events = 0

    def bits(self, tensors: list[Tensor]) -> list[tuple[torch.device, int] | None]:
        """Where the checksum of each tensor will be; None for one without dense bits, which is counted."""
        found: list[tuple[torch.device, int] | None] = [None] * len(tensors)
        groups: dict[torch.device, list[tuple[int, Tensor]]] = {}
        for at, tensor in enumerate(tensors):
            if (one := dense(tensor)) is None:
                kind = f"{type(tensor).__name__} ({tensor.dtype}, {tensor.layout})"
                self.unseen[kind] = self.unseen.get(kind, 0) + 1
            else:
                groups.setdefault(one.device, []).append((at, one))
        for device, group in groups.items():
            if device not in self._sums:
                self._sums[device] = Sums(device)
            for (at, _), slot in zip(group, self._sums[device].add([one for _, one in group]), strict=True):
                found[at] = (device, slot)
        return found

    def add(self, event: dict[str, Any]) -> dict[str, Any]:
        """Keep an event; its `in` and `out` are what `bits` gave."""
        if len(self._waiting) < MOST_EVENTS:
            self._waiting.append(event)
        else:
            self.left_out += 1
        return event

    def forget(self, step: int, attempts: Sequence[int]) -> None:
        """Drop what these attempts of an open step left."""
        kept = [one for one in self._waiting if one["s"] != step or one["k"] not in attempts]
        self._waiting = kept

    def flush(self, step: int) -> None:
        """Write what waits: one copy from each device."""
        texts = {device: sums.read() for device, sums in self._sums.items()}

        def text(place: tuple[torch.device, int] | None) -> str:
            return "" if place is None else texts[place[0]][place[1]]

        for event in self._waiting:
            for side in ("in", "out"):
                if side in event:
                    event[side] = [one if isinstance(one, str) else text(one) for one in event[side]]
            self._line(event)
        self.events += len(self._waiting)
        self._waiting = []
        self.steps = step
        self._file.flush()

    def close(self, **more: Any) -> None:
        """The mark that nothing is cut off."""
        end = {"events": self.events, "steps": self.steps, "left_out": self.left_out, "unseen": self.unseen}
        self._line({"end": {**end, **more}})
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _line(self, value: Any) -> None:
        self._file.write(json.dumps(value, separators=(",", ":")) + "\n")
