"""Audits: impossible numbers are refused, with the reason and every factor of the product.

They read a run of this room (replay, energy) or a published measurement. Two faults can cancel, so a sum that
looks right proves nothing as long as one of its factors is refused.
"""

from __future__ import annotations

from pathlib import Path

from lab.errors import MissingError, not_here
from lab.rooms.kernels.audit.check import Check
from lab.rooms.kernels.audit.energies import of_energy
from lab.rooms.kernels.audit.published import of_published
from lab.rooms.kernels.audit.replays import of_replay
from lab.rooms.kernels.energy import files as energy
from lab.rooms.kernels.energy.choice import RawEnergy
from lab.rooms.kernels.energy.result import EnergyResult
from lab.rooms.kernels.replay import files as replay
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.replay.files import read_file
from lab.rooms.kernels.replay.proof.result import Result


def audit_folder(folder: Path, *, board_limit_w: float | None = None) -> list[Check]:
    """All audits that the files in `folder` allow. Raises MissingError if there is nothing to audit."""
    if not folder.is_dir():
        if folder.exists():
            raise MissingError("this is a file, not a folder", location=folder, fix=f"name {folder.parent}")
        raise not_here("no such folder", folder)
    checks = [*_of_run(folder), *of_published(folder, board_limit_w)]
    if not checks:
        raise MissingError(
            "nothing here can be audited",
            location=folder,
            fix="name a run of `lab run kernels replay` or `energy`, or a published measurement's folder",
        )
    return checks


def _of_run(folder: Path) -> list[Check]:
    if not replay.is_replay(folder):  # an energy run has a replay plan too
        return []
    plan = read_file(folder / replay.PLAN_FILE, ReplayPlan)
    checks: list[Check] = []
    if (folder / replay.RESULT).is_file():
        checks += of_replay(read_file(folder / replay.RESULT, Result), plan)
    if (folder / energy.RESULT).is_file():
        raw = folder / energy.RAW_FILE
        measured = read_file(raw, RawEnergy) if raw.is_file() else None
        checks += of_energy(read_file(folder / energy.RESULT, EnergyResult), measured)
    return checks
