"""Small sweeps written as real trace files, so that each test says what ran on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.rooms.sweep.gemm.data import SweepData, read_sweep
from lab.rooms.sweep.tables import SweepTables
from tests.tracegen import TraceWriter

RANKS = 2
STEP_US = 1000


def write_rank(
    folder: Path,
    rank: int,
    *,
    late_us: float = 0.0,
    until_us: int = 400,
    ranks: int = RANKS,
    seq: bool = False,
) -> Path:
    """Two steps of three GEMMs and a collective: the 2nd and 3rd GEMM run beside it unless the rank is late.

    64x32x128 takes 10 us alone and 20 beside; the collective begins at 200 (+ late_us) and ends at
    `until_us` for all.
    """
    writer = TraceWriter(rank=rank, world_size=ranks)
    for number in (5, 6):
        at = STEP_US * number
        writer.step(number, at, STEP_US - 10)
        begin = 200 + late_us
        for start in (100, 220, 300):
            writer.gemm(64, 32, 128, at + start, 20 if begin <= start else 10 + number / 10)
        writer.all_reduce(1024, at + begin, until_us - begin)
    name = f"trace_step{number}.json.gz"
    return writer.write(folder / "torch_profiler" / f"rank{rank}" / name)


def write_sweep(
    root: Path, *, threads: tuple[int, ...] = (256, 512), ranks: int = RANKS, until_us: int = 400
) -> Path:
    """Rank 1 comes 150 us late to every collective, so its GEMMs run alone."""
    for one in threads:
        for rank in range(ranks):
            write_rank(
                root / f"{one}thread" / "nccl_28channels",
                rank,
                late_us=150 * (rank == 1),
                until_us=until_us,
                ranks=ranks,
            )
    return root


def two_shapes(folder: Path, *, steps: tuple[int, ...] = (1, 2)) -> Path:
    """Two shapes with one kernel name: 4x4x4 takes 10, 11, 12 ..., 8x8x8 takes 30 but once 90."""
    writer = TraceWriter()
    for number in steps:
        at = 10_000 * number
        writer.step(number, at, 9000)
        for i in range(4):
            writer.gemm(4, 4, 4, at + 1000 * i + 100, 10 + i)
            writer.gemm(8, 8, 8, at + 1000 * i + 400, 90 if (number, i) == (2, 2) else 30)
    writer.write(folder / "256thread/nccl_28channels/torch_profiler/rank0/trace_step9.json")
    return folder


def read(root: Path) -> SweepData:
    return read_sweep(root, workers=1)


def read_tables(root: Path, **options: Any) -> SweepTables:
    """The tables of the sweep's page."""
    return read_sweep(root, **options).tables
