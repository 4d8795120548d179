"""The files of an energy run."""

from __future__ import annotations

from pathlib import Path

from lab.rooms.kernels.replay.files import PLAN_FILE

CONFIG_FILE, RAW_FILE = "energy_config.json", "energy/energy_raw.json"
RESULT, TABLE = "energy.json", "tables/energy.csv"


def is_energy(folder: Path) -> bool:
    """Whether `folder` is a run of `lab run kernels energy`."""
    return (folder / CONFIG_FILE).is_file() and (folder / PLAN_FILE).is_file()
