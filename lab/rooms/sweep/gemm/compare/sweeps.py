"""The sweeps that are compared: their tables, and the environment each was recorded in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lab.core.manifest import Manifest
from lab.core.run import Run
from lab.errors import LabError
from lab.recordings.capture import Meta
from lab.recordings.load import load_torch_trace
from lab.recordings.pool import map_traces
from lab.recordings.ranks import RankWork, work_of
from lab.rooms.sweep.assemble import sweep_tables
from lab.rooms.sweep.expected import expected_rows
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.layout import TraceFile, find_configs
from lab.rooms.sweep.rank import RankFigures, figures_of, unread
from lab.rooms.sweep.ranks.read import by_setting
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


def read_for_comparison(
    folder: Path,
    label: str,
    workers: int,
    progress: Callable[[int, int, Path], None] | None = None,
) -> Sweep:
    """Tables and environment of one sweep, each trace read once."""
    run = Run.open(folder) if Run.is_run(folder) else None
    expected = expected_rows(run)
    configs = find_configs(folder)
    jobs = [(number, trace) for number, config in enumerate(configs) for trace in config.traces]
    on_done = None if progress is None else lambda done, total, job: progress(done, total, job[1].path)
    results = map_traces(_read, jobs, workers=workers, progress=on_done)
    read: list[list[RankFigures]] = [[] for _ in configs]
    metas: list[Meta] = []
    works: dict[Key, dict[int, RankWork]] = {}
    for (number, trace), result in zip(jobs, results, strict=True):
        if isinstance(result, LabError):
            read[number].append(unread(trace, result))
        else:
            read[number].append(result[0])
            metas.append(result[1])
            works.setdefault(configs[number].key, {})[result[0].rank] = result[2]
    tables = sweep_tables(folder, configs, read, expected)
    environment = _environment(run.manifest if run else None, metas, tables)
    return Sweep(label, folder, tables, environment, bound_by_hosts(by_setting(works)) or "")


def _read(job: tuple[int, TraceFile]) -> tuple[RankFigures, Meta, RankWork]:
    trace = load_torch_trace(job[1].path)
    figures = figures_of(job[1], trace)
    return figures, trace.meta, work_of(trace, figures.rank)


def environments(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """What is known of each sweep's environment, one row per fact; what differs comes first."""
    facts = list(dict.fromkeys(name for one in sweeps for name in one.environment))
    rows = []
    for fact in facts:
        values = [one.environment.get(fact, "not recorded") for one in sweeps]
        row = dict(zip([one.label for one in sweeps], values, strict=True))
        rows.append({"what": fact, **row, "state": "same" if len(set(values)) == 1 else "differs"})
    frame = pd.DataFrame(rows, columns=["what", *[one.label for one in sweeps], "state"])
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
    for title, found in (
        ("host", manifest.host),
        ("version", manifest.versions),
        ("env", manifest.env),
        ("config", manifest.config),
    ):
        facts |= {f"{title} {name}": str(value) for name, value in found.items()}
    return facts
