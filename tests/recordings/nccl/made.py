"""Files of NCCL's tools as their sources write them, small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def speed(
    sizes_us: dict[int, float], *, program: str = "all_reduce_perf", ranks: int = 8, **more: Any
) -> dict:
    """nccl-tests' -J file; out of place as given, in place 10 % slower."""
    place = {"alg_bw": 100.0, "bus_bw": 175.0, "nwrong": 0}
    return {
        "version": 3,
        "args": [f"./build/{program}", "-b", "8", "-J", "x.json"],
        "env": {"NCCL_DEBUG": "INFO", "SECRET_TOKEN": "hunter2", "HSA_X": "1"},
        "nccl_version": 22809,
        "devices": [{"rank": rank, "hostname": "h"} for rank in range(ranks)],
        "config": {},
        "results": [
            {
                "size": size,
                "count": size // 4,
                "type": "float",
                "redop": "sum",
                "root": "   -1",
                "out_of_place": {"time": us, **place},
                "in_place": {"time": 1.1 * us, **place},
                "out_of_place_per_iter": {"p50_us": us, "p95_us": us * 1.2, "cv_pct": 3.0},
            }
            for size, us in sizes_us.items()
        ],
        "out_of_bounds": {"count": 0, "okay": True},
        "average_bus_bandwidth": {"bandwidth": 175.0, "okay": "unchecked"},
        "errors": [],
        **more,
    }


def operation(
    rank: int, serial: int, exec_us: float, *, ranks: int = 4, size: int = 1 << 20, **more: Any
) -> dict:
    """One line of NCCL Inspector."""
    return {
        "header": {"id": "0xabc", "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": "h", "pid": 7},
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": serial,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": exec_us,
            "coll_timing_source": "kernel_gpu",
            **more,
        },
    }


def ras(counts: dict[int, int], *, timestamp: str = "1", missing: int = 0, **status: Any) -> dict:
    """One answer of `ncclras -f json` about one communicator."""
    ranks = [
        {
            "rank": rank,
            "host": "h",
            "status": {"init_state": 0, **status},
            "collective_counts": {"AllReduce": n},
        }
        for rank, n in counts.items()
    ]
    gone = [
        {"rank": 90 + i, "status": {"unresponsive": True, "considered_dead": True}} for i in range(missing)
    ]
    one = {"hash": "0x1", "size": len(ranks) + missing, "ranks_count": len(ranks), "ranks": ranks}
    one |= {"missing_ranks_count": missing, "missing_ranks": gone}
    return {
        "nccl_version": "2.28.9",
        "timestamp": timestamp,
        "communicators": [one],
        "ras": {"timeouts_count": 0},
    }


def write(path: Path, *documents: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(one) for one in documents))
    return path
