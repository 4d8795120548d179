"""Two steps of a small trace."""

from __future__ import annotations

from pathlib import Path

from lab.recordings.capture import Capture
from lab.recordings.kineto import read_kineto
from tests.tracegen import TraceWriter, training_step


def read(writer: TraceWriter, folder: Path) -> Capture:
    return read_kineto(writer.write(folder / "t.json"))


def two_steps(vendor: str = "nvidia") -> TraceWriter:
    writer = TraceWriter(world_size=2, vendor=vendor)
    training_step(writer, 5, 1000)
    training_step(writer, 6, 1050)
    return writer
