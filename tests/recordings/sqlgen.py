"""Small exports of nsys with known contents, in tables and columns of its SQLite schema 3.20.3."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75
PREFIX = "CUPTI_ACTIVITY_KIND_"
DEVICE_SIDE = "start end deviceId contextId greenContextId streamId correlationId globalPid"
COLUMNS = {
    "KERNEL": f"{DEVICE_SIDE} demangledName shortName mangledName gridX gridY gridZ blockX blockY blockZ "
    "registersPerThread staticSharedMemory dynamicSharedMemory graphNodeId",
    "MEMCPY": f"{DEVICE_SIDE} bytes copyKind srcKind dstKind graphNodeId",
    "MEMSET": f"{DEVICE_SIDE} value bytes graphNodeId memKind",
    "GRAPH_TRACE": f"{DEVICE_SIDE} graphId graphExecId",
    "SYNCHRONIZATION": f"{DEVICE_SIDE} syncType eventId",
    "RUNTIME": "start end eventClass globalTid correlationId nameId returnValue callchainId",
}
NVTX = "start end eventType rangeId category color text globalTid endGlobalTid textId domainId jsonText"


def global_tid(pid: int, tid: int = 0) -> int:
    """How nsys packs a process and a thread; the upper bits are the machine's."""
    return 1 << 48 | pid << 24 | tid


class Export:
    """Rows by table; `write` makes the file. As in nsys' lazy export, tables without rows are absent."""

    def __init__(self, *, version: str = "2025.3.2.0", schema: str = "3.20.3") -> None:
        self.rows: dict[str, list[dict[str, object]]] = {}
        self.columns: dict[str, list[str]] = {PREFIX + name: text.split() for name, text in COLUMNS.items()}
        self.columns["NVTX_EVENTS"] = NVTX.split()
        self.strings: dict[str, int] = {}
        self.correlation = 0
        for name, value in (("EXPORT_PRODUCT_VERSION", version), ("EXPORT_SCHEMA_VERSION", schema)):
            self.add("META_DATA_EXPORT", name=name, value=value)

    def add(self, table: str, **row: object) -> None:
        self.rows.setdefault(table, []).append(row)

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, 100 + 7 * len(self.strings))

    def launch(
        self,
        name: str,
        at: tuple[int, int],
        call: tuple[int, int],
        run: tuple[int, int],
        *,
        device: int = 0,
        corr: int | None = None,
        graph_node: int | None = None,
        api: str = "cudaLaunchKernel_v7000",
    ) -> int:
        """A kernel that ran during `run`, launched by thread at = (pid, tid) in a call during `call`."""
        corr = self.call(api, at, call, corr=corr)
        self.kernel(name, at[0], run, corr, device=device, graph_node=graph_node)
        return corr

    def call(self, api: str, at: tuple[int, int], call: tuple[int, int], *, corr: int | None = None) -> int:
        if corr is None:
            self.correlation += 1
            corr = self.correlation
        self.add(
            PREFIX + "RUNTIME",
            start=call[0],
            end=call[1],
            eventClass=0,
            globalTid=global_tid(*at),
            correlationId=corr,
            nameId=self.string(api),
            returnValue=0,
        )
        return corr

    def kernel(
        self,
        name: str,
        pid: int,
        run: tuple[int, int],
        corr: int,
        *,
        device: int = 0,
        graph_node: int | None = None,
    ) -> None:
        self.add(
            PREFIX + "KERNEL",
            start=run[0],
            end=run[1],
            deviceId=device,
            contextId=1,
            greenContextId=0,
            streamId=7,
            correlationId=corr,
            globalPid=global_tid(pid),
            demangledName=self.string(name),
            shortName=self.string(name.split("<")[0]),
            mangledName=self.string("_Z" + name),
            gridX=4,
            gridY=1,
            gridZ=1,
            blockX=128,
            blockY=1,
            blockZ=1,
            registersPerThread=32,
            staticSharedMemory=0,
            dynamicSharedMemory=1024,
            graphNodeId=graph_node,
        )

    def copy(
        self, at: tuple[int, int], call: tuple[int, int], run: tuple[int, int], *, size: int, kind: int = 1
    ) -> None:
        corr = self.call("cudaMemcpyAsync_v3020", at, call)
        self.add(
            PREFIX + "MEMCPY",
            start=run[0],
            end=run[1],
            deviceId=0,
            contextId=1,
            streamId=7,
            correlationId=corr,
            globalPid=global_tid(at[0]),
            bytes=size,
            copyKind=kind,
            srcKind=0,
            dstKind=2,
        )

    def range(
        self,
        name: str,
        at: tuple[int, int],
        start: int,
        end: int | None,
        *,
        kind: int = PUSH_POP,
        domain: int = 0,
        registered: bool = False,
        end_at: tuple[int, int] | None = None,
    ) -> None:
        text = {"textId": self.string(name)} if registered else {"text": name}
        self.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=kind,
            globalTid=global_tid(*at),
            domainId=domain,
            endGlobalTid=global_tid(*end_at) if end_at else None,
            **text,
        )

    def write(self, path: Path) -> Path:
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            self._fill(connection)
            connection.commit()
        return path

    def _fill(self, connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        connection.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(i, text) for text, i in self.strings.items()]
        )
        for table, rows in self.rows.items():
            columns = self.columns.get(table) or list(dict.fromkeys(key for row in rows for key in row))
            quoted = ", ".join(f'"{name}"' for name in columns)
            connection.execute(f'CREATE TABLE "{table}" ({quoted})')
            marks = ", ".join("?" * len(columns))
            values = [tuple(row.get(name) for name in columns) for row in rows]
            connection.executemany(f'INSERT INTO "{table}" ({quoted}) VALUES ({marks})', values)


def training_step(export: Export, *, worker: int = 2, op_ranges: bool = False) -> Export:
    """Warm-up and two steps: forward and optimizer on thread 1, backward's kernels on `worker`.

    Each step: forward 2 GEMMs (100 ns each), backward 1 fill by thread 1 (10 ns) and 4 GEMMs by the worker,
    optimizer 1 kernel (50 ns); 8 kernels, 660 ns.
    """
    for index, name in enumerate(("warmup", "step_0", "step_1")):
        t = 10_000 * (index + 1)
        export.range(name, (1, 1), t, t + 9_000)
        export.range("forward", (1, 1), t + 100, t + 1_000)
        for i in range(2):
            export.launch(
                "gemm_forward",
                (1, 1),
                (t + 200 + 50 * i, t + 210 + 50 * i),
                (t + 300 + 200 * i, t + 400 + 200 * i),
            )
        export.range("backward", (1, 1), t + 2_000, t + 5_000)
        export.launch("fill", (1, 1), (t + 2_100, t + 2_110), (t + 2_120, t + 2_130))
        if op_ranges:
            export.range("MmBackward0, seq = 7, op_id = 9", (1, worker), t + 2_150, t + 4_900)
        for i in range(4):
            call = t + 2_200 + 100 * i
            export.launch("gemm_backward", (1, worker), (call, call + 10), (call + 50, call + 150))
        export.range("optimizer_step", (1, 1), t + 6_000, t + 7_000)
        export.launch("adam", (1, 1), (t + 6_100, t + 6_110), (t + 7_500, t + 7_550))
    return export
