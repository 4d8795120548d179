"""Processes, threads and devices of one section: ids of the file -> what the tables of a capture hold.

Of the environment only the rank and which domains were traced are taken; command, host name, machine id and
paths are never read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.recordings.capture import Device, Process
from lab.recordings.rocm import Columns, device_of_agent, json_object, narrow
from lab.recordings.rocpd.section import Section
from lab.recordings.sqlite import lookup

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK")
_TABLES = ("kernel_dispatch", "memory_copy", "region")


@dataclass(frozen=True)
class People:
    """Processes and GPUs of one section; `base` is the index of its first process in the capture."""

    base: int
    processes: tuple[Process, ...]
    devices: tuple[Device, ...]
    nodes: tuple[int, ...]
    environments: tuple[dict[str, str], ...]
    _ids: np.ndarray
    _threads: Columns
    _agents: Columns

    def process_of(self, pid_ids: np.ndarray) -> np.ndarray:
        """Indices (n,) of the capture's processes; a row without one belongs to the only one there is."""
        return lookup(self._ids, np.arange(len(self._ids)), pid_ids, 0) + self.base

    def pid_of(self, pid_ids: np.ndarray) -> np.ndarray:
        pids = np.array([-1 if process.pid is None else process.pid for process in self.processes])
        return lookup(self._ids, pids, pid_ids)

    def tid_of(self, thread_ids: np.ndarray) -> np.ndarray:
        return lookup(self._threads["id"], self._threads["tid"], thread_ids)

    def device_of(self, agent_ids: np.ndarray) -> np.ndarray:
        """The GPU's ordinal (n,); an agent's own number counts CPUs too. -1 for a CPU."""
        return narrow(lookup(self._agents["id"], self._agents["type_index"], agent_ids))


def people_of(section: Section, base: int) -> People:
    """Every process that has rows, whether or not the file describes it."""
    rows = section.integers("info_process", "id", "pid nid start end init fini")
    with_rows = [section.integers(table, "pid")["pid"] for table in _TABLES]
    ids = np.unique(np.concatenate([rows["id"], *with_rows]))
    if (ids >= 0).sum() == 1:
        ids = ids[ids >= 0]
    texts = section.texts("info_process", "environment")
    environments = [_environment(texts.get(process, "")) for process in ids.tolist()]
    processes = [
        _process(rows, process, environment)
        for process, environment in zip(ids.tolist(), environments, strict=True)
    ]
    kinds = section.texts("info_agent", "type")
    agents = section.integers("info_agent", "id", "type_index pid")
    is_gpu = np.array([kinds.get(agent) == "GPU" for agent in agents["id"].tolist()], dtype=bool)
    gpus = {name: column[is_gpu] for name, column in agents.items()}
    return People(
        base=base,
        processes=tuple(processes) or (Process(),),
        devices=_devices(section, gpus, ids, base),
        nodes=tuple(np.unique(rows["nid"]).tolist()),
        environments=tuple(environments),
        _ids=ids if len(ids) else np.array([-1]),
        _threads=section.integers("info_thread", "id", "tid"),
        _agents=gpus,
    )


def _process(rows: Columns, process: int, environment: dict[str, str]) -> Process:
    """The process with this id, by its row of info_process where it has one."""
    at_id = {name: column[rows["id"] == process].tolist() for name, column in rows.items()}

    def positive(*names: str) -> int | None:
        return next((at_id[name][0] for name in names if at_id[name] and at_id[name][0] > 0), None)

    pids = [*at_id["pid"], process]
    pid = pids[0] if pids[0] >= 0 else process
    return Process(
        pid=pid if pid >= 0 else None,
        rank=_rank(environment),
        start_ns=positive("start", "init"),
        end_ns=positive("end", "fini"),
    )


def _devices(section: Section, gpus: Columns, ids: np.ndarray, base: int) -> tuple[Device, ...]:
    names, details = section.texts("info_agent", "product_name"), section.texts("info_agent", "extdata")
    index = lookup(ids, np.arange(len(ids)), gpus["pid"])
    processes = np.where(index >= 0, base + index, -1)
    rows = zip(gpus["id"].tolist(), gpus["type_index"].tolist(), processes.tolist(), strict=True)
    return tuple(
        device_of_agent(json_object(details.get(agent, "")), ordinal, names.get(agent, ""), process)
        for agent, ordinal, process in rows
    )


def _environment(text: str) -> dict[str, str]:
    """The variables on the list: ranks and what the profiler was told to trace."""
    return {
        name: str(value)[:64]
        for name, value in json_object(text).items()
        if name in _RANKS or (name.startswith("ROCPROF_") and name.endswith("_TRACE"))
    }


def _rank(environment: dict[str, str]) -> int | None:
    numbers = [environment[name] for name in _RANKS if environment.get(name, "").isdecimal()]
    return int(numbers[0]) if numbers and len(numbers[0]) < 8 else None
