"""A sweep of two ranks whose all-reduces take a planted time per number of channels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.tracegen import TraceWriter

NELEMS = 1 << 22  # 16 MiB of float32
STEPS, STEP_US, CALLS, GEMM_US = 2, 8000, 3, 300


def write_run(
    folder: Path,
    transfer_us: float,
    *,
    grid: int = 28,
    block: int = 288,
    late_us: float = 0.0,
    nelems: tuple[int, ...] = (NELEMS,),
    log: str = "",
) -> Path:
    """One run: per step CALLS times a GEMM and an all-reduce. late_us: rank 1's host is so late in each."""
    for rank in (0, 1):
        writer = TraceWriter(rank=rank, world_size=2)
        for step in range(STEPS):
            at = 1000.0 + STEP_US * step
            writer.step(5 + step, at, STEP_US)
            after = 0.0
            for call in range(CALLS):
                own = after + (late_us if rank == 1 else 0.0)
                writer.gemm(64, 32, 128, at + own + 100, GEMM_US)
                begun = at + own + 401
                end = at + after + 401 + late_us + transfer_us
                writer.all_reduce(
                    nelems[call % len(nelems)], begun, end - begun, grid=grid, block=block, stream=7
                )
                after = end - at
        writer.write(folder / "torch_profiler" / f"rank{rank}" / "trace_step7.json.gz")
    (folder / "nccl.host.1.log").write_text(
        "host:1:1 [0] NCCL INFO 28 coll channels, 0 nvls channels\n" + log
    )
    return folder


def tuning(num_bytes: int, algorithm: str = "RING", protocol: str = "SIMPLE", high: int = 27) -> str:
    """NCCL's line on one call, as rank 0 logs it."""
    choice = f"Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..{high}}}"
    return f"host:1:1 [0] NCCL INFO AllReduce: {num_bytes} Bytes -> {choice}\n"


def applied(num_bytes: int, channels: int = 28, algorithm: str = "ring", protocol: str = "simple") -> str:
    """The example plugin's line on one call."""
    return (
        "host:1:1 [0] NCCL INFO TUNER/ExamplePlugin: Applied config for collType=allreduce, "
        f"bytes={num_bytes}, pipeOps=1, regBuff=0: algo={algorithm}, "
        f"proto={protocol}, channels={channels} (nodes=1, ranks=2)\n"
    )


def write_sweep(
    root: Path, transfer_us: Mapping[int, float], *, repeats: int = 3, scatter_us: float = 1.0, **run: object
) -> Path:
    """A sweep at 256 threads; each repeat is 20 us slower than the one before, runs differ by scatter."""
    for channels, base in transfer_us.items():
        for repeat in range(1, repeats + 1):
            folder = root / "256thread" / f"nccl_{channels}channels"
            folder = folder / f"repeat{repeat}" if repeat > 1 else folder
            shake = scatter_us * ((channels * 7 + repeat * 3) % 5 - 2)
            write_run(folder, base + 20 * repeat + shake, **{"grid": channels, **run})  # type: ignore[arg-type]
    return root
