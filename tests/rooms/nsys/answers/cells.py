"""A cell with a made recording."""

from __future__ import annotations

import numpy as np

from lab.recordings.load import load_capture
from lab.recordings.projection import project
from lab.rooms.nsys.analyze import with_tables
from lab.rooms.nsys.layout import CellData, CellResult, CellSettings
from lab.rooms.nsys.recording import recording_of
from tests.rooms.nsys.made import SPEC, write_trace


def told(kind, *forward_ms) -> CellResult:
    asked = CellSettings(model_size="tiny", context_length=64, profile_type=kind)
    steps = [{"forward_ms": ms, "step_ms": ms, "loss": 1.0} for ms in forward_ms]
    return CellResult(asked=asked, outcome="ok", steps=steps)


def cell(tmp_path, kind="training", *, spec=SPEC, python_ms=None, plain_ms=None, **more) -> CellData:
    path = write_trace(tmp_path / f"{kind}.json", kind, **more)
    one = CellData(
        size="tiny",
        context=64,
        type=kind,
        capture=path,
        spec=spec,
        result=told(kind, *np.full(more.get("steps", 2), python_ms)) if python_ms else None,
        twin=told(kind, plain_ms) if plain_ms else None,
    )
    return with_tables(one, recording_of(project(load_capture(path))))


def states(answer):
    return {check.name: check.state for check in answer.checks}


def wall_ms(one):
    return float(one.phase("forward").wall_ms)
