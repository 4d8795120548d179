"""Reader of rocpd databases: rocprofv3's default output from ROCm 7 on, and rocprof-sys'.

A file holds one set of tables per process, with the process' guid in their names (`rocpd_region_<guid>`), and
views that join them. Ids are unique within a guid only. The views are not read: an inner join in them drops
rows without a word, and in a foreign file they are code. A call and its kernels share `stack_id`; the column
`correlation_id` holds the external id, which is usually 0. Times are ns on one clock since boot.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.errors import BadDataError
from lab.recordings import sqlite
from lab.recordings.capture import Capture
from lab.recordings.lacks import Lack, doubt, missing
from lab.recordings.rocm import Parts
from lab.recordings.rocpd.rows import (
    Section,
    add_calls,
    add_copies,
    add_dispatches,
    sections_of,
)
from lab.recordings.tables import Table


def load(path: Path | str) -> Capture:
    """Read one database, of one or several processes."""
    parts, nodes = Parts(Path(path)), set[int]()
    with sqlite.opened(parts.path) as connection:
        database = sqlite.Database(connection, parts.path)
        parts.problems = database.problems
        sections = sections_of(database)
        if not sections:
            problem = "a rocpd database without a table rocpd_kernel_dispatch_*"
            raise BadDataError(problem, location=parts.path)
        for section in sections:
            section = replace(section, base=len(parts.processes))
            nodes |= set(section.described["nid"].tolist())
            _add(section, parts)
        schema = _schema(sections[0])
    if len(nodes) > 1:
        parts.problems.append(f"{len(nodes)} machines recorded: times of one do not compare with another's")
    guids = " ".join(str(section.guid) for section in sections)
    return parts.capture("rocpd", schema, ids=guids)


def _add(section: Section, parts: Parts) -> None:
    kernels, dispatches = add_dispatches(section, parts)
    api = add_calls(section, parts)
    for index, environment in enumerate(section.environments):
        process = section.base + index
        of_process = kernels.process == process
        ids = dispatches[of_process]
        parts.judge(process, ids, calls=bool((api.process == process).any()))
        parts.lacks += _untraced_kernels(environment, process, len(ids))
        parts.lacks += _short_replays(section, process, kernels.where(of_process))
    add_copies(section, parts)
    parts.processes += section.processes
    parts.devices += section.devices()


def _untraced_kernels(environment: dict[str, str], process: int, num_kernels: int) -> list[Lack]:
    """Rule T: the profiler's own settings name other domains, but not kernels."""
    traced = {name: value for name, value in environment.items() if name.startswith("ROCPROF_")}
    if num_kernels or not traced or traced.get("ROCPROF_KERNEL_TRACE", "0").lower() in ("1", "true", "on"):
        return []
    text = "kernels were not traced: record with --kernel-trace"
    return [doubt("gpu", "T", text, process=process)]


def _short_replays(section: Section, process: int, kernels: Table) -> list[Lack]:
    """Rule R: newer tools count a graph's kernels at its launch; fewer rows of that graph are a loss."""
    launches = section.integers("graph_launch", "pid graph_exec_id kernel_dispatch_count")
    of_process = section.process_of(launches["pid"]) == process
    graphs = launches["graph_exec_id"][of_process]
    counts = np.maximum(launches["kernel_dispatch_count"][of_process], 0)
    lost = sum(
        max(int(counts[graphs == graph].sum()) - int((kernels.graph == graph).sum()), 0)
        for graph in np.unique(graphs[graphs > 0]).tolist()
    )
    due = int(counts[graphs > 0].sum())
    if not lost:
        return []
    words = "that graph launches counted are not here"
    return [missing("gpu", "hole", "R", lost, due, "kernel", words, process)]


def _schema(section: Section) -> str | None:
    table = section.name("metadata")
    if not {"tag", "value"} <= section.database.columns.get(table, frozenset()):
        return None
    row = section.database.connection.execute(
        f"SELECT value FROM {sqlite.quoted(table)} WHERE tag = 'schema_version' AND typeof(value) = 'text'"
    ).fetchone()
    return str(row[0])[:32] if row else None
