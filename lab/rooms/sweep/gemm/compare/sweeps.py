"""The sweeps that are compared: their tables, and the environment each was recorded in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab.core.manifest import Manifest
from lab.core.run import Run
from lab.recordings.capture import Meta
from lab.rooms.sweep.expected import expected_rows
from lab.rooms.sweep.gemm.reading.data import SweepData, read_sweep
from lab.rooms.sweep.gemm.reading.pairs import explained_of
from lab.rooms.sweep.tables import SweepTables
from lab.rooms.sweep.verdict.ranks import bound_by_hosts


@dataclass(frozen=True)
class Sweep:
    """One sweep as it is compared: its tables, and the environment it was recorded in."""

    label: str
    folder: Path
    tables: SweepTables
    environment: dict[str, str]
    host_bound: str = ""  # where the hosts, not the GPUs, set the pace of its steps
    data: SweepData | None = None


def read_for_comparison(
    folder: Path,
    label: str,
    workers: int,
    progress: Callable[[int, int, Path], None] | None = None,
) -> Sweep:
    """What one sweep says, and its environment; each trace is read once."""
    run = Run.open(folder) if Run.is_run(folder) else None
    data = read_sweep(folder, workers=workers, expected=expected_rows(run), progress=progress)
    metas = [rank.meta for ranks in data.ranks.values() for rank in ranks.values()]
    environment = _environment(run.manifest if run else None, metas, data.tables)
    return Sweep(label, folder, data.tables, environment, bound_by_hosts(explained_of(data)) or "", data)


def environments(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """What is known of each sweep's environment, one row per fact; what differs comes first."""
    facts = list(dict.fromkeys(name for sweep in sweeps for name in sweep.environment))
    rows = []
    for fact in facts:
        values = [sweep.environment.get(fact, "not recorded") for sweep in sweeps]
        row = dict(zip([sweep.label for sweep in sweeps], values, strict=True))
        rows.append({"what": fact, **row, "state": "same" if len(set(values)) == 1 else "differs"})
    frame = pd.DataFrame(rows, columns=["what", *[sweep.label for sweep in sweeps], "state"])
    ordered: pd.DataFrame = frame.sort_values("state", kind="stable", ignore_index=True)
    return ordered


def _environment(manifest: Manifest | None, metas: Sequence[Meta], tables: SweepTables) -> dict[str, str]:
    """What every recording says in its traces, and what lab recorded in the manifest."""

    def recorded(name: str) -> str:
        values = {str(value) for meta in metas if (value := getattr(meta, name)) not in (None, "", ())}
        return ", ".join(sorted(values)) or "not recorded"

    devices = {f"{len(meta.devices)} × {meta.devices[0]}" for meta in metas if meta.devices}
    facts = {"GPUs (trace)": ", ".join(sorted(devices)) or "none"}
    names = {
        "vendor": "vendor",
        "ranks": "world_size",
        "backend": "backend",
        "torch": "torch_version",
        "NCCL or RCCL": "nccl_version",
        "CUDA runtime": "cuda_version",
        "HIP runtime": "hip_version",
    }
    facts |= {f"{title} (trace)": recorded(name) for title, name in names.items()}
    steps = sorted(set(tables.timeline["steps"]))
    facts["profiled steps (trace)"] = ", ".join(map(str, steps)) or "none"
    return facts | (_from_manifest(manifest) if manifest else {"manifest": "none: not recorded by lab"})


def _from_manifest(manifest: Manifest) -> dict[str, str]:
    gpus = manifest.gpus
    facts = {
        "manifest": "present",
        "engine": manifest.engine,
        "image": manifest.image.ref if manifest.image else "none",
        "lab": f"{manifest.lab.version} {manifest.lab.commit or ''}".strip(),
        "driver": ", ".join(sorted({gpu.driver or "unknown" for gpu in gpus})) or "none",
        "highest SM clock, MHz": ", ".join(sorted({f"{gpu.max_sm_mhz}" for gpu in gpus})) or "none",
        "power limit, W": ", ".join(sorted({f"{gpu.power_limit_w}" for gpu in gpus})) or "none",
    }
    for title, entries in (
        ("host", manifest.host),
        ("version", manifest.versions),
        ("env", manifest.env),
        ("config", manifest.config),
    ):
        facts |= {f"{title} {name}": str(value) for name, value in entries.items()}
    return facts
