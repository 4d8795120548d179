"""A sweep of two ranks whose all-reduces take a planted time per number of channels."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from tests.tracegen import TraceWriter

NELEMS = 1 << 22  # 16 MiB of float32
STEPS, STEP_US, CALLS, GEMM_US = 2, 8000, 3, 300


def write_run(
    folder: Path,
    transfer_us: float,
    *,
    world: int = 2,
    only: Iterable[int] = (),
    late: Mapping[int, float] = MappingProxyType({}),
    late_calls: Container[int] = range(CALLS),
    slow: Mapping[int, float] = MappingProxyType({}),
    gemm_us: float = GEMM_US,
    grid: int = 28,
    block: int = 288,
    nelems: tuple[int, ...] = (NELEMS,),
    log: str = "",
    traces: str = "torch_profiler",
) -> Path:
    """One run: per step CALLS times a GEMM and an all-reduce, which ends for all ranks together.

    late: us that a rank's host stops before each of late_calls; slow: factor on a rank's GEMMs; only: the
    ranks that are recorded.
    """
    longest_us = gemm_us * max(slow.values(), default=1.0)
    for rank in only or range(world):
        writer = TraceWriter(rank=rank, world_size=world)
        for step in range(STEPS):
            at = 1000.0 + STEP_US * step
            writer.step(5 + step, at, STEP_US)
            after = at
            for call in range(CALLS):
                stops = late if call in late_calls else {}
                begin, length = after + stops.get(rank, 0.0) + 100, gemm_us * slow.get(rank, 1.0)
                writer.gemm(64, 32, 128, begin, length)
                end = after + 101 + longest_us + max(stops.values(), default=0.0) + transfer_us
                begun = begin + length + 1
                size = nelems[call % len(nelems)]
                writer.all_reduce(size, begun, end - begun, grid=grid, block=block, stream=7)
                after = end
        writer.write(folder / traces / f"rank{rank}" / "trace_step7.json.gz")
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
