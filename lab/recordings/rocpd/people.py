"""Processes, threads and devices of one section: ids of the file -> what the tables of a capture hold.

Of the environment only the rank and which domains were traced are taken; command, host name, machine id and
paths are never read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.recordings.capture import Device, Process
from lab.recordings.rocm import device_of_agent, narrow
from lab.recordings.rocpd.section import Section
from lab.recordings.sqlite import lookup

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK")
_TABLES = ("kernel_dispatch", "memory_copy", "region")


@dataclass(frozen=True)
class People:
    """Who is who in one section; `first` is the index of its first process among all of the capture."""

    first: int
    processes: tuple[Process, ...]
    devices: tuple[Device, ...]
    nodes: tuple[int, ...]
    environments: tuple[dict[str, str], ...]
    _ids: np.ndarray
    _threads: dict[str, np.ndarray]
    _agents: dict[str, np.ndarray]

    def process_of(self, pid_ids: np.ndarray) -> np.ndarray:
        """Indices (n,) of the capture's processes; a row without one belongs to the only one there is."""
        return lookup(self._ids, np.arange(len(self._ids)), pid_ids, 0) + self.first

    def pid_of(self, pid_ids: np.ndarray) -> np.ndarray:
        known = np.array([-1 if one.pid is None else one.pid for one in self.processes])
        return lookup(self._ids, known, pid_ids)

    def tid_of(self, thread_ids: np.ndarray) -> np.ndarray:
        return lookup(self._threads["id"], self._threads["tid"], thread_ids)

    def device_of(self, agent_ids: np.ndarray) -> np.ndarray:
        """The GPU's ordinal (n,); an agent's own number counts CPUs too. -1 for a CPU."""
        return narrow(lookup(self._agents["id"], self._agents["type_index"], agent_ids))


def people_of(section: Section, first: int) -> People:
    """Every process that has rows, whether or not the file describes it."""
    known = section.integers("info_process", "id", "pid nid start end init fini")
    with_rows = [section.integers(table, "pid")["pid"] for table in _TABLES]
    ids = np.unique(np.concatenate([known["id"], *with_rows]))
    if (ids >= 0).sum() == 1:
        ids = ids[ids >= 0]
    environments = section.texts("info_process", "environment")
    found, described = [], []
    for one in ids.tolist():
        row = np.flatnonzero(known["id"] == one)
        at = int(row[0]) if len(row) else -1
        environment = _environment(environments.get(one, ""))
        described.append(environment)
        found.append(
            Process(
                pid=int(known["pid"][at]) if at >= 0 and known["pid"][at] >= 0 else one if one >= 0 else None,
                rank=_rank(environment),
                start_ns=_known(known, at, "start", "init"),
                end_ns=_known(known, at, "end", "fini"),
            )
        )
    kinds = section.texts("info_agent", "type")
    agents = section.integers("info_agent", "id", "type_index pid")
    is_gpu = np.array([kinds.get(one) == "GPU" for one in agents["id"].tolist()], dtype=bool)
    gpus = {name: column[is_gpu] for name, column in agents.items()}
    return People(
        first=first,
        processes=tuple(found) or (Process(),),
        devices=_devices(section, gpus, ids, first),
        nodes=tuple(np.unique(known["nid"]).tolist()),
        environments=tuple(described),
        _ids=ids if len(ids) else np.array([-1]),
        _threads=section.integers("info_thread", "id", "tid"),
        _agents=gpus,
    )


def _devices(
    section: Section, gpus: dict[str, np.ndarray], ids: np.ndarray, first: int
) -> tuple[Device, ...]:
    names, details = section.texts("info_agent", "product_name"), section.texts("info_agent", "extdata")
    of_process = lookup(ids, np.arange(len(ids)), gpus["pid"])
    process = np.where(of_process >= 0, first + of_process, -1)
    rows = zip(gpus["id"].tolist(), gpus["type_index"].tolist(), process.tolist(), strict=True)
    return tuple(
        device_of_agent(_object(details.get(agent, "")), ordinal, names.get(agent, ""), index)
        for agent, ordinal, index in rows
    )


def _known(known: dict[str, np.ndarray], at: int, *names: str) -> int | None:
    if at < 0:
        return None
    return next((int(known[name][at]) for name in names if known[name][at] > 0), None)


def _environment(text: str) -> dict[str, str]:
    """The variables on the list: ranks and what the profiler was told to trace."""
    found = _object(text)
    return {
        name: str(value)[:64]
        for name, value in found.items()
        if name in _RANKS or (name.startswith("ROCPROF_") and name.endswith("_TRACE"))
    }


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _rank(environment: dict[str, str]) -> int | None:
    numbers = [environment[name] for name in _RANKS if environment.get(name, "").isdecimal()]
    return int(numbers[0]) if numbers and len(numbers[0]) < 8 else None
