"""The state of the GPUs beside each run of a sweep."""

from __future__ import annotations

from lab.recordings.gpu_state import GpuState, read_state
from lab.rooms.sweep.gemm.reading.data import SweepData
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.layout import configs_of


def states_of(data: SweepData) -> dict[Key, GpuState]:
    """The samples of every run that has some."""
    if "states" not in data.memo:
        sampled = {
            config.key: read_state(config.path) for config in configs_of(data.folder, may_be_empty=True)
        }
        data.memo["states"] = {key: state for key, state in sampled.items() if state is not None}
    states: dict[Key, GpuState] = data.memo["states"]
    return states
