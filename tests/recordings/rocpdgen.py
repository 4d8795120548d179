"""Small rocpd databases of schema 3 with known contents: one process per call of `process`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

GUIDS = ("00000001-aaaa-7000-8000-000000000001", "00000002-bbbb-7000-8000-000000000002")
COLUMNS = {
    "metadata": "id tag value",
    "string": "id guid string",
    "info_node": "id guid hash machine_id hostname",
    "info_process": "id guid nid pid init fini start end command environment extdata",
    "info_thread": "id guid nid pid tid",
    "info_agent": "id guid nid pid type absolute_index logical_index type_index product_name extdata",
    "info_kernel_symbol": "id guid nid pid kernel_name display_name group_segment_size sgpr_count "
    "arch_vgpr_count accum_vgpr_count",
    "event": "id guid category_id stack_id parent_stack_id correlation_id extdata",
    "region": "id guid nid pid tid start end name_id event_id",
    "track": "id guid nid pid tid name_id",
    "sample": "id guid track_id timestamp event_id",
    "kernel_dispatch": "id guid nid pid tid agent_id kernel_id dispatch_id queue_id stream_id start end "
    "private_segment_size group_segment_size workgroup_size_x workgroup_size_y workgroup_size_z grid_size_x "
    "grid_size_y grid_size_z region_name_id event_id graph_exec_id graph_node_id",
    "memory_copy": "id guid nid pid tid start end name_id dst_agent_id src_agent_id size queue_id stream_id "
    "event_id graph_exec_id graph_node_id",
    "graph_launch": "id guid nid pid tid start end graph_exec_id kernel_dispatch_count event_id",
}
_INTEGERS = {"start", "end", "timestamp", "stack_id", "dispatch_id", "size"}


class Process:
    """The rows of one process. Two CPUs come before its GPUs, as on a real machine: GPU 0 is agent 2."""

    def __init__(
        self, guid: str, pid: int, *, node: int = 7, environment: dict[str, str] | None = None
    ) -> None:
        self.guid, self.pid = guid, pid
        self.rows: dict[str, list[dict[str, object]]] = {name: [] for name in COLUMNS}
        self._strings: dict[str, int] = {}
        self._symbols: dict[str, int] = {}
        for tag, value in (("schema_version", "3"), ("uuid", self.suffix), ("guid", guid)):
            self.add("metadata", tag=tag, value=value)
        self.add("info_node", id=node, hash=1, machine_id="secret-machine", hostname="secret-host")
        self.add(
            "info_process",
            id=pid,
            nid=node,
            pid=pid,
            start=1,
            end=9_999,
            command="secret-command",
            environment=json.dumps({"TOKEN": "secret-token", **(environment or {})}),
            extdata="{}",
        )
        self.add("info_thread", id=pid, nid=node, pid=pid, tid=pid + 1000)
        for index, kind in enumerate(("CPU", "CPU", "GPU", "GPU")):
            ordinal = index if kind == "CPU" else index - 2
            self.add(
                "info_agent",
                id=index,
                pid=pid,
                type=kind,
                absolute_index=index,
                logical_index=index,
                type_index=ordinal,
                product_name=f"{kind} of {pid}",
                extdata=json.dumps({"cu_count": 304, "max_engine_clk_fcompute": 2100, "secret": "secret-x"}),
            )

    @property
    def suffix(self) -> str:
        return "_" + self.guid.replace("-", "_")

    def add(self, table: str, **row: object) -> int:
        rows = self.rows[table]
        rows.append({"id": len(rows) + 1, "guid": self.guid, **row})
        return int(str(rows[-1]["id"]))

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = self.add("string", string=text)
        return self._strings[text]

    def event(self, category: str, stack: int, message: str | None = None) -> int:
        return self.add(
            "event",
            category_id=self.string(category),
            stack_id=stack,
            parent_stack_id=0,
            correlation_id=0,
            extdata=json.dumps({"message": message} if message is not None else {}),
        )

    def call(self, name: str, at: tuple[int, int], stack: int, category: str = "HIP_RUNTIME_API_EXT") -> None:
        self._region(name, at, self.event(category, stack))

    def mark(self, text: str, at: tuple[int, int], stack: int, name: str = "roctxThreadRangeA") -> None:
        event = self.event("MARKER_CORE_RANGE_API", stack, text)
        if at[0] == at[1]:
            track = self.add(
                "track", pid=self.pid, tid=self.pid, name_id=self.string("MARKER_CORE_RANGE_API")
            )
            self.add("sample", track_id=track, timestamp=at[0], event_id=event)
        else:
            self._region(name, at, event)

    def _region(self, name: str, at: tuple[int, int], event: int) -> None:
        row = {"pid": self.pid, "tid": self.pid, "start": at[0], "end": at[1], "event_id": event}
        self.add("region", **row, name_id=self.string(name))

    def kernel(self, name: str, at: tuple[int, int], stack: int, **more: object) -> None:
        if name not in self._symbols:
            self._symbols[name] = self.add(
                "info_kernel_symbol",
                kernel_name=f"_Z{name}.kd",
                display_name=name,
                group_segment_size=1024,
                arch_vgpr_count=40,
                accum_vgpr_count=8,
            )
        row = {
            "pid": self.pid,
            "tid": self.pid,
            "agent_id": 2,
            "kernel_id": self._symbols[name],
            "dispatch_id": len(self.rows["kernel_dispatch"]) + 1,
            "queue_id": 16,
            "stream_id": 0,
            "start": at[0],
            "end": at[1],
            "group_segment_size": 5120,
            **{f"workgroup_size_{axis}": size for axis, size in zip("xyz", (256, 2, 1), strict=True)},
            **{f"grid_size_{axis}": size for axis, size in zip("xyz", (1000, 8, 1), strict=True)},
            "event_id": self.event("KERNEL_DISPATCH", stack),
        }
        self.add("kernel_dispatch", **{**row, **more})

    def launch(
        self, name: str, call: tuple[int, int], run: tuple[int, int], stack: int, **more: object
    ) -> None:
        self.call("hipLaunchKernel", call, stack)
        self.kernel(name, run, stack, **more)

    def copy(
        self, kind: str, at: tuple[int, int], size: int, stack: int, target: int = 2, origin: int = 0
    ) -> None:
        self.add(
            "memory_copy",
            pid=self.pid,
            tid=self.pid,
            start=at[0],
            end=at[1],
            name_id=self.string(f"MEMORY_COPY_{kind}"),
            dst_agent_id=target,
            src_agent_id=origin,
            size=size,
            stream_id=3,
            event_id=self.event("MEMORY_COPY", stack),
        )


def write(path: Path, *processes: Process, suffix: str | None = None) -> Path:
    """The database: a set of tables per guid and a view over each; one set for all with `suffix`."""
    with closing(sqlite3.connect(path)) as made:
        for process in processes:
            end = process.suffix if suffix is None else suffix
            for table, columns in COLUMNS.items():
                types = ", ".join(
                    f'"{name}" INTEGER' if name in _INTEGERS or name.endswith("_id") else f'"{name}"'
                    for name in columns.split()
                )
                made.execute(f'CREATE TABLE IF NOT EXISTS "rocpd_{table}{end}" ({types})')
                for row in process.rows[table]:
                    known = {name: value for name, value in row.items() if name in columns.split()}
                    names = ", ".join(f'"{name}"' for name in known)
                    marks = ", ".join("?" * len(known))
                    values = tuple(known.values())
                    made.execute(f'INSERT INTO "rocpd_{table}{end}" ({names}) VALUES ({marks})', values)
        ends = [suffix] if suffix is not None else [one.suffix for one in processes]
        for table in COLUMNS:
            union = " UNION ALL ".join(f'SELECT * FROM "rocpd_{table}{end}"' for end in ends)
            if suffix != "":
                made.execute(f'CREATE VIEW "rocpd_{table}" AS {union}')
        made.commit()
    return path


def two(pid: int = 28) -> tuple[Process, Process]:
    """Two processes with one pid and one range of stack ids, whose kernels have different names."""
    found = []
    for guid, name in zip(GUIDS, ("first", "second"), strict=True):
        one = Process(guid, pid)
        for index in range(4):
            at = 100 * index
            one.launch(name, (at, at + 10), (at + 20, at + 50), stack=index + 1)
        found.append(one)
    return found[0], found[1]
