"""Small JSON files of rocprofv3 with known contents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# The index of a kind is its number; it differs between versions of the tool.
KINDS = [
    {"kind": "NONE", "operations": []},
    {"kind": "KERNEL_DISPATCH", "operations": ["KERNEL_DISPATCH_NONE", "KERNEL_DISPATCH_COMPLETE"]},
    {"kind": "HIP_RUNTIME_API_EXT", "operations": []},
    {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
    {
        "kind": "MARKER_CORE_RANGE_API",
        "operations": ["roctxMarkA", "roctxThreadRangeA", "roctxProcessRangeA"],
    },
]
NUMBER = {kind["kind"]: index for index, kind in enumerate(KINDS)}


class Element:
    """One process of the list. Its agents: two CPUs, then GPUs 0 and 1."""

    def __init__(self, pid: int = 9, gpu: str = "GPU", units: int = 256) -> None:
        self.pid, self.gpu, self.units = pid, gpu, units
        self.calls = ["hipMemset"]
        self.messages: list[dict[str, Any]] = []
        self.records: dict[str, list[dict[str, Any]]] = {
            name: [] for name in ("kernel_dispatch", "hip_api", "marker_api", "memory_copy", "scratch_memory")
        }
        self.symbols = [symbol(0, ""), symbol(1, "alpha"), symbol(2, "beta")]

    def kernel(self, kernel: int, at: tuple[int, int], corr: int, number: int, **more: Any) -> None:
        info = {
            "agent_id": {"handle": 102},
            "queue_id": {"handle": 16},
            "kernel_id": kernel,
            "dispatch_id": number,
            "group_segment_size": 5120,
            "workgroup_size": {"x": 256, "y": 2, "z": 1},
            "grid_size": {"x": 1000, "y": 8, "z": 1},
        }
        row = _row("KERNEL_DISPATCH", 1, at, corr) | {"dispatch_info": info, "stream_id": {"handle": 3}}
        self.records["kernel_dispatch"].append(row | more)

    def call(self, operation: str, at: tuple[int, int], corr: int) -> None:
        if operation not in self.calls:
            self.calls.append(operation)
        number = self.calls.index(operation)
        self.records["hip_api"].append(_row("HIP_RUNTIME_API_EXT", number, at, corr))

    def mark(self, text: str, at: tuple[int, int], corr: int, operation: int = 1) -> None:
        self.records["marker_api"].append(_row("MARKER_CORE_RANGE_API", operation, at, corr))
        self.messages.append({"key": corr, "value": text})

    def copy(self, at: tuple[int, int], size: int, corr: int, **more: Any) -> None:
        agents = {"dst_agent_id": {"handle": 103}, "src_agent_id": {"handle": 100}}
        row = _row("MEMORY_COPY", 1, at, corr) | agents | {"bytes": size, "stream_id": {"handle": 4}}
        self.records["memory_copy"].append(row | more)

    def document(self) -> dict[str, Any]:
        return {
            "metadata": {
                "pid": self.pid,
                "init_time": 1,
                "fini_time": 999_999,
                "command": ["secret-command"],
                "node": {"hostname": "secret-host", "machine_id": "secret-machine"},
            },
            "agents": [_agent(index, self.gpu, self.units) for index in range(4)],
            "strings": {
                "callback_records": [],
                "buffer_records": [
                    one | {"operations": self.calls} if one["kind"] == "HIP_RUNTIME_API_EXT" else one
                    for one in KINDS
                ],
                "marker_api": self.messages,
                "correlation_id": {"external": []},
            },
            "code_objects": [{"uri": "file:///secret-path", "list": [{"a": [1, 2]}]}],
            "kernel_symbols": self.symbols,
            "buffer_records": self.records,
        }


def symbol(number: int, name: str) -> dict[str, Any]:
    return {
        "kernel_id": number,
        "formatted_kernel_name": name,
        "kernel_name": f"{name}.kd",
        "group_segment_size": 1024,
        "arch_vgpr_count": 40,
        "accum_vgpr_count": 8,
    }


def _agent(index: int, name: str, units: int) -> dict[str, Any]:
    gpu = index >= 2
    return {
        "id": {"handle": 100 + index},
        "type": 2 if gpu else 1,
        "logical_node_id": index,
        "logical_node_type_id": index - 2 if gpu else index,
        "product_name": name if gpu else "CPU",
        "cu_count": units,
    }


def _row(kind: str, operation: int, at: tuple[int, int], corr: int) -> dict[str, Any]:
    return {
        "size": 184,
        "kind": NUMBER[kind],
        "operation": operation,
        "thread_id": 77,
        "correlation_id": {"internal": corr, "external": 0},
        "start_timestamp": at[0],
        "end_timestamp": at[1],
    }


def write(path: Path, *elements: Element, indent: int | None = None) -> Path:
    document = {"rocprofiler-sdk-tool": [one.document() for one in elements]}
    separators = (",", ":") if indent is None else None
    path.write_text(json.dumps(document, indent=indent, separators=separators))
    return path
