"""Generations as a profiler would record them, every figure known: two layers, a prefill and decode steps."""

from __future__ import annotations

from pathlib import Path

from lab.rooms.kernels.catalogue.build import read_catalogue
from lab.rooms.kernels.trails import Trail
from tests.tracegen import TraceWriter

FORWARD_US, GAP_US = 1000, 100
MM = {
    "Input Dims": [[4, 8], [8, 8]],
    "Input type": ["c10::Half"] * 2,
    "Input Strides": [[8, 1], [1, 8]],
    "Concrete Inputs": ["", ""],
}
RESOURCES = {"shared memory": 512, "registers per thread": 90}
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
COPY = "Memcpy DtoD (Device -> Device)"


def generation(
    forwards: int = 3, *, rank: int = 0, world_size: int = 1, late_us: float = 0, comm: bool = False
) -> TraceWriter:
    """Per forward: two mm of 10 us, an add of 2 us, a growing cat, and (comm) an all-reduce of 8 us."""
    writer = TraceWriter(rank=rank, world_size=world_size)
    for forward in range(forwards):
        start = 1000 + forward * (FORWARD_US + GAP_US) + late_us
        writer.event("user_annotation", f"decode_{forward}" if forward else "prefill", start, FORWARD_US)
        for at_us in (start, start + 100):
            op = writer.op("aten::mm", at_us + 20, 30, **MM)
            writer.kernel("nvjet_gemm", at_us + 60, 10, op=op, call_us=at_us + 45, **RESOURCES)
        op = writer.op("aten::add", start + 300, 20)
        writer.kernel(ADD, start + 340, 2, op=op, call_us=start + 315)
        sizes = {"Input Dims": [[[1, forward + 1]], []], "Input type": ["TensorList", "Scalar"]}
        op = writer.op("aten::cat", start + 400, 20, **sizes, **{"Concrete Inputs": ["", "1"]})
        copied = 8 * (forward + 1)
        writer.kernel(COPY, start + 440, 1, op=op, call_us=start + 415, bytes=copied)
        if comm:
            writer.all_reduce(1024, start + 62, 8)
    return writer


def profile_folder(folder: Path, **more) -> Path:
    """A run's `profile/` with the traces of `world_size` ranks."""
    for rank in range(more.get("world_size", 1)):
        generation(rank=rank, **more).write(folder / "profile" / f"trace_rank{rank}.json.gz")
    return folder


def catalogue_of(path: Path):
    """The catalogue of one trace."""
    return read_catalogue([Trail(rank=0, trace=path)])
