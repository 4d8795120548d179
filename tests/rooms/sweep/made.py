"""Small sweeps as tables, made here so that each test says what is in them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.tables import CONFIGS, EFFECTIVE, GEMM, PROBLEMS, TIMELINE, TIMELINE_MS, SweepTables

SHAPES = [("aten::mm", 4096, 2048, 8192), ("aten::mm", 4096, 8192, 2048)]


def sweep(
    totals_ms: dict[tuple[int, int], list[float]],
    *,
    ranks: int = 4,
    device: str = "gpu",
    failed: dict[tuple[int, int], str] | None = None,
    got_channels: dict[int, int] | None = None,
) -> SweepTables:
    """A sweep with one repeat per total; `failed` is setting -> reason, `got_channels` asked -> effective."""
    timeline, effective, gemm, configs = [], [], [], []
    for (threads, channel), totals in totals_ms.items():
        for repeat, total_ms in enumerate(totals):
            key = Key(threads, channel, repeat=repeat)._asdict()
            rows = [{**key, **_time(rank, total_ms, device)} for rank in range(ranks)]
            timeline += rows
            if device != "cpu":
                effective += [
                    {**key, **row} for row in _messages(threads, channel, ranks, got_channels or {})
                ]
            gemm += [{**key, **row} for row in _gemms(total_ms, ranks)]
            figures = pd.DataFrame(rows)[TIMELINE_MS].median().to_dict()
            configs.append({**key, **_state("ok", None, ranks, ranks), **figures})
    for (threads, channel), reason in (failed or {}).items():
        key = Key(threads, channel, repeat=0)._asdict()
        configs.append({**key, **_state("failed", reason, 0, ranks), **dict.fromkeys(TIMELINE_MS, np.nan)})
    return SweepTables(
        pd.DataFrame(timeline, columns=TIMELINE),
        pd.DataFrame(effective, columns=EFFECTIVE),
        pd.DataFrame(gemm, columns=GEMM),
        pd.DataFrame(configs, columns=CONFIGS),
        pd.DataFrame([], columns=PROBLEMS),
    )


def _time(rank: int, total_ms: float, device: str) -> dict[str, object]:
    computation_ms, comm_ms, memcpy_ms = 0.35 * total_ms, 0.5 * total_ms, 0.01 * total_ms
    busy_ms = computation_ms + comm_ms + memcpy_ms
    return {
        "rank": rank,
        "computation_time_ms": computation_ms,
        "exposed_comm_time_ms": comm_ms,
        "exposed_memcpy_time_ms": memcpy_ms,
        "busy_time_ms": busy_ms,
        "idle_time_ms": total_ms - busy_ms,
        "total_time_ms": total_ms,
        "total_comm_time_ms": 1.2 * comm_ms,
        "total_memcpy_time_ms": memcpy_ms,
        "steps": 2,
        "device": device,
        "kernels": 584,
        "unlinked_kernels": 0,
        "recording": "complete",
        "bound": "exact",
        "file": f"rank{rank}/trace_step7.json",
    }


def _messages(
    threads: int, channel: int, ranks: int, got_channels: dict[int, int]
) -> list[dict[str, object]]:
    got = got_channels.get(channel, channel)
    return [
        {
            "rank": rank,
            "collective": "_allgather_base",
            "requested_channels": channel,
            "effective_channels": got,
            "requested_threads": threads,
            "effective_threads": block,
            "count": 12,
            "in_nelems": size // 16,
            "dtype": "BFloat16",
            "msg_bytes": size,
            "log_channels": got,
            "channels_verdict": "honoured" if got == channel else "clamped",
            "threads_verdict": "honoured" if block == threads + 32 else "ignored",
            "kernel": "ncclDevKernel_AllGather_RING_LL",
            **{name: "" for name in EFFECTIVE if name.endswith(("_algorithm", "_protocol"))},
            **dict.fromkeys(("algorithm_verdict", "protocol_verdict"), "unknown"),
        }
        for rank in range(ranks)
        for size, block in ((8 << 20, 640), (96 << 20, threads + 32))
    ]


def _gemms(total_ms: float, ranks: int) -> list[dict[str, object]]:
    return [
        {
            "rank": rank,
            "op": op,
            "M": m,
            "N": n,
            "K": k,
            "B": 1,
            "bias": False,
            "dtype": "BFloat16",
            "transpose": "TN",
            "n": 12,
            "mean_us": total_ms,
            "median_us": total_ms,
            "mad_us": 2.0,
            "cv": 0.02,
            "min_us": 0.9 * total_ms,
            "p95_us": 1.1 * total_ms,
            "max_us": 1.2 * total_ms,
            "sum_us": 12 * total_ms,
            "tflops_median": 500.0,
        }
        for rank in range(ranks)
        for op, m, n, k in SHAPES
    ]


def _state(status: str, reason: str | None, found: int, expected: int) -> dict[str, object]:
    return {
        "status": status,
        "reason": reason,
        "ranks_found": found,
        "ranks_expected": expected,
        "missing_ranks": "",
        "slowest_rank": 0,
        "channels_verdict": "honoured",
        "threads_verdict": "ignored",
        "log_channels": -1,
    }
