"""The state of the GPUs beside each run of a sweep, and the clock at each GEMM."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.recordings.gpu_state import GpuState, read_state
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.layout import configs_of
from lab.rooms.sweep.tables import KEY, grouped


def states_of(data: SweepData) -> dict[Key, GpuState]:
    """The samples of every run that has some."""
    if "states" not in data.memo:
        found = {config.key: read_state(config.path) for config in configs_of(data.folder, may_be_empty=True)}
        data.memo["states"] = {key: state for key, state in found.items() if state is not None}
    known: dict[Key, GpuState] = data.memo["states"]
    return known


def with_clocks(data: SweepData, rows: pd.DataFrame) -> pd.DataFrame:
    """The instances with clock_mhz, the GPU's clock at the sample nearest to each; NaN where none is near."""
    states = states_of(data)
    clock = np.full(len(rows), np.nan)
    if states:
        numbered = rows.assign(_at=np.arange(len(rows)))
        for values, mine in grouped(numbered, [*KEY, "rank"]):
            state = states.get(Key(*values[:-1]))
            if state is not None:
                clock[mine["_at"].to_numpy()] = state.at(int(values[-1]), mine["ts_ns"].to_numpy())
    known: pd.DataFrame = rows.assign(clock_mhz=clock)
    return known
