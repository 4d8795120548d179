"""Small .rpd files of schemas 2 and 3 with known contents."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_API = '"id" INTEGER PRIMARY KEY, ' + ", ".join(
    f'"{one}" INTEGER' for one in ["pid", "tid", "start", "end", "apiName_id"]
)
_KERNEL = (
    "api_ptr_id stream gridX gridY gridZ workgroupX workgroupY workgroupZ groupSegmentSize privateSegmentSize"
)
_TABLES = {
    "rocpd_metadata": '"id" INTEGER PRIMARY KEY, "tag" TEXT, "value" TEXT',
    "rocpd_string": '"id" INTEGER PRIMARY KEY, "string" TEXT',
    "rocpd_op": '"id" INTEGER PRIMARY KEY, "gpuId" INTEGER, "queueId" INTEGER, "sequenceId" INTEGER, '
    '"start" INTEGER, "end" INTEGER, "description_id" INTEGER, "opType_id" INTEGER',
    "rocpd_api_ops": '"id" INTEGER PRIMARY KEY, "api_id" INTEGER, "op_id" INTEGER',
    "rocpd_kernelapi": ", ".join(f'"{name}"' for name in _KERNEL.split()),
    "rocpd_copyapi": '"api_ptr_id" INTEGER, "stream" TEXT, "size" INTEGER',
}


class Rpd:
    """Rows by table; `write` makes the file."""

    def __init__(self, schema: int = 2, **metadata: int) -> None:
        self.schema = schema
        self.rows: dict[str, list[dict[str, object]]] = {name: [] for name in _TABLES}
        self.rows["rocpd_api"], self.rows["rocpd_ustring"] = [], []
        self._texts: dict[tuple[str, str], int] = {}
        if schema >= 3:
            metadata = {"gpu_stride": 1000, "pid_stride": 10_000_000} | metadata
        for tag, value in (("schema_version", schema), *metadata.items()):
            self.add("rocpd_metadata", tag=tag, value=str(value))

    def add(self, table: str, **row: object) -> int:
        self.rows[table].append({"id": len(self.rows[table]) + 1, **row})
        return len(self.rows[table])

    def text(self, text: str, table: str = "rocpd_string") -> int:
        if (table, text) not in self._texts:
            self._texts[table, text] = self.add(table, string=text)
        return self._texts[table, text]

    def call(
        self,
        name: str,
        at: tuple[int, int],
        *,
        pid: int = 5,
        tid: int = 6,
        args: str = "",
        domain: str = "hip",
        category: str = "",
    ) -> int:
        more = {"args_id": self.text(args, "rocpd_ustring" if self.schema >= 3 else "rocpd_string")}
        if self.schema >= 3:
            more |= {"domain_id": self.text(domain), "category_id": self.text(category)}
        return self.add(
            "rocpd_api", pid=pid, tid=tid, start=at[0], end=at[1], apiName_id=self.text(name), **more
        )

    def op(self, kind: str, at: tuple[int, int], call: int | None, text: str = "", gpu: int = 2) -> int:
        named = {"description_id": self.text(text), "opType_id": self.text(kind)}
        op = self.add("rocpd_op", gpuId=gpu, queueId=7, sequenceId=0, start=at[0], end=at[1], **named)
        if call is not None:
            self.add("rocpd_api_ops", api_id=call, op_id=op)
        return op

    def kernel(
        self,
        name: str,
        call: tuple[int, int],
        run: tuple[int, int],
        api: str = "hipLaunchKernel",
        **more: int,
    ) -> int:
        made = self.call(api, call, **more)
        sizes = dict(zip(_KERNEL.split()[2:8], (1792, 3, 1, 256, 1, 1), strict=True))
        self.rows["rocpd_kernelapi"].append(
            {"api_ptr_id": made, "stream": "0x1f", "groupSegmentSize": 64} | sizes
        )
        self.op("KernelExecution", run, made, name)
        return made

    def copy(self, kind: str, call: tuple[int, int], run: tuple[int, int], size: int) -> None:
        made = self.call("hipMemcpyAsync", call)
        self.rows["rocpd_copyapi"].append({"api_ptr_id": made, "stream": "0x0", "size": size})
        self.op(kind, run, made)

    def write(self, path: Path) -> Path:
        more = ', "args_id" INTEGER' + (
            ', "domain_id" INTEGER, "category_id" INTEGER' if self.schema >= 3 else ""
        )
        tables = _TABLES | {"rocpd_api": _API + more}
        if self.schema >= 3:
            tables["rocpd_ustring"] = '"id" INTEGER PRIMARY KEY, "string" TEXT'
        with closing(sqlite3.connect(path)) as made:
            for table, columns in tables.items():
                made.execute(f'CREATE TABLE "{table}" ({columns})')
                for row in self.rows[table]:
                    known = {name: value for name, value in row.items() if f'"{name}"' in columns}
                    names, marks = ", ".join(f'"{name}"' for name in known), ", ".join("?" * len(known))
                    made.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', tuple(known.values()))
            made.commit()
        return path
