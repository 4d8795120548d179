"""Which kernels of semicrf.cu run on what, decided by the shape alone: nothing here touches a GPU.

A kernel's parameters say what it takes: numbers of the shape or of its launch, places in a workspace, and
tensors that the caller binds, all by their names. A plan is made once per shape; a call then allocates, adds
addresses and launches, so that little of the host's time is spent on a problem that the GPU does in a third
of a millisecond.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

# As cudaMalloc aligns: a buffer in a workspace is read like a tensor of its own.
ALIGNED_BYTES = 256
BYTES = {torch.float64: 8, torch.float32: 4, torch.int32: 4, torch.int64: 8, torch.uint8: 1}
TYPES = {"double": torch.float64, "int": torch.int32, "i64": torch.int64, "u8": torch.uint8}
"""Of a buffer's numbers, by what the kernels call it; REAL is the shape's."""
KERNEL = re.compile(r"KERNEL\((\w+)[\w, ]*\) (\w+)\(([^)]*)\)")
PARAMETER = re.compile(r"(\w+)\W+(\w+)\s*(?:,|$)")


SOURCE = Path(__file__).with_name("semicrf.cu")


@functools.cache
def kernels() -> dict[str, tuple[str, dict[str, str]]]:
    """Kernels by name: the constant with their number of threads, and types of parameters by name."""
    matches = KERNEL.findall(SOURCE.read_text())
    return {
        name: (threads, {parameter: kind for kind, parameter in PARAMETER.findall(arguments)})
        for threads, name, arguments in matches
    }


@dataclass(frozen=True)
class Sizes:
    """How the kernels divide the work: sums are grouped by these and by K, never by batch or padding."""

    block: int = 16  # frames in a block
    # For a lane: a direction of a sequence. Fewer where many lanes must share the multiprocessors.
    threads: int = 256
    tile: int = 32  # frames in a tile of the label counts
    stage: int = 16  # blocks in a stage
    # Into which the blocks before one are divided at the fewest labels; half as many at twice the labels.
    parts: int = 8
    count_frames: int = 64  # in a chunk of the transition counts
    # Blocks in a chunk of the duration counts, more for long durations: partial sums take K / chunk rows.
    count_blocks: int = 16
    near_blocks: int = 2  # and where segments start and end in one block
    table_rows: int = 64  # of the duration table that one block of threads weighs
    narrowest: int = 32  # labels are padded to this, or twice or four times as many: whole warps

    def padded(self, labels: int) -> int:
        return next(self.narrowest * more for more in (1, 2, 4) if labels <= self.narrowest * more)

    def used(self, labels: int) -> int:
        """Labels that kernels go through one by one: fewer, and without a rest."""
        return min(ceiling(labels, 8) * 8, self.padded(labels))

    def constants(self, wide: int) -> dict[str, int]:
        """Constants that the source takes besides types and labels."""
        numbers = {"N": self.block, "THREADS": self.threads, "TILE": self.tile, "STAGE": self.stage}
        return {**numbers, "PARTS": self.parts * self.narrowest // wide}

    def far_blocks(self, longest: int) -> int:
        """How many blocks back a segment of K frames can start."""
        return (longest - 2) // self.block + 1 if longest >= 2 else 0


@dataclass(frozen=True, eq=False)
class Shape:
    """What a plan depends on. `shape_of` gives the same object again, so that plans are found by identity."""

    batch: int
    frames: int
    longest: int
    labels: int
    real: torch.dtype
    sizes: Sizes

    @property
    def wide(self) -> int:
        return self.sizes.padded(self.labels)

    @property
    def blocks(self) -> int:
        return ceiling(self.frames, self.sizes.block)

    @property
    def far(self) -> int:
        return self.sizes.far_blocks(self.longest)

    @property
    def tiles(self) -> int:
        return ceiling(self.frames, self.sizes.tile)

    def numbers(self) -> dict[str, int]:
        """Numbers of this plan by their names in the kernels."""
        names = ("batch", "frames", "longest", "labels", "blocks", "tiles")
        derived = {"far_blocks": self.far, "CP": self.wide, "THREADS": self.sizes.threads}
        return {name: getattr(self, name) for name in names} | derived


@functools.lru_cache(maxsize=64)
def shape_of(batch: int, frames: int, longest: int, labels: int, real: torch.dtype, sizes: Sizes) -> Shape:
    return Shape(batch, frames, longest, labels, real, sizes)


@dataclass(frozen=True)
class Buffer:
    """A piece of a workspace."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @functools.cached_property
    def bytes(self) -> int:
        return BYTES[self.dtype] * math.prod(self.shape)

    def view(self, workspace: torch.Tensor) -> torch.Tensor:
        """This piece of a workspace of bytes."""
        return workspace[self.offset : self.offset + self.bytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class Launch:
    """A kernel; `numbers` are what it is given beside the plan's. `made` adds its threads and parameters.

    A run of kernels that go `aside` may overlap what follows them, up to the first one that `joins`.
    """

    kernel: str
    grid: tuple[int, ...]
    numbers: Mapping[str, int] = field(default_factory=dict)
    aside: bool = False
    joins: bool = False
    threads: int = 0
    parameters: tuple[str, ...] = ()

    def arguments(self, words: Mapping[str, int]) -> tuple[Any, Any]:
        """The arguments in slots of 8 bytes, which must live up to the launch, and the slots' addresses. An
        int is read from a slot's first 4 bytes.
        """
        values, count = {**words, **self.numbers}, len(self.parameters)
        slots = (ctypes.c_uint64 * count)(*map(values.__getitem__, self.parameters))
        address = ctypes.addressof(slots)
        return slots, (ctypes.c_void_p * count)(*range(address, address + 8 * count, 8))


@dataclass(frozen=True, eq=False)
class Plan:
    """Launches and the buffers they work on. `workspace` is the name of the tensor that holds the buffers;
    those of the `earlier` plan, in a workspace of its own, can be named too.
    """

    workspace: str
    buffers: dict[str, Buffer]
    bytes: int
    launches: tuple[Launch, ...]
    numbers: Mapping[str, int]
    earlier: Plan | None

    def words(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """Numbers, and addresses of tensors and of buffers, by the parameters' names."""
        words = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        for plan in (self.earlier, self) if self.earlier else (self,):
            base = words[plan.workspace] if plan.buffers else 0
            words.update({name: base + buffer.offset for name, buffer in plan.buffers.items()})
        words.update(self.numbers)
        return words


def made(
    workspace: str,
    shape: Shape,
    wanted: Mapping[str, tuple[int, ...]],
    launches: list[Launch],
    numbers: Mapping[str, int],
    earlier: Plan | None = None,
) -> Plan:
    """A plan with buffers of the `wanted` shapes, each of the type that the kernels give it."""
    used = {launch.kernel: kernels()[launch.kernel] for launch in launches}
    kinds = {name: kind for _, parameters in used.values() for name, kind in parameters.items()}
    buffers, size = {}, 0
    for name, sizes in wanted.items():
        dtype = shape.real if kinds[name] == "REAL" else TYPES[kinds[name]]
        buffers[name] = Buffer(dtype, sizes, size)
        size += ceiling(buffers[name].bytes, ALIGNED_BYTES) * ALIGNED_BYTES
    all_numbers = {**shape.numbers(), **numbers}
    bound = tuple(
        replace(launch, threads=all_numbers[used[launch.kernel][0]], parameters=tuple(used[launch.kernel][1]))
        for launch in launches
    )
    return Plan(workspace, buffers, size, bound, all_numbers, earlier)


def ceiling(amount: int, unit: int) -> int:
    return -(-amount // unit)


@functools.lru_cache(maxsize=64)
def plan_messages(shape: Shape, directions: int, saturate: bool = False) -> Plan:
    """The model's weights and the passes: with two directions all messages are kept, with one only log Z.

    To be bound: score, transition, duration, start, end, lengths; log_z (B,) is written, and so are z_value,
    z_power, flags and count of each lane (direction of a sequence). With `saturate` weights are 0 and 1.
    """
    sizes, wide, keep, staged = shape.sizes, shape.wide, directions == 2, shape.far > shape.sizes.stage
    rows, lanes = (shape.far + 2) * sizes.block, shape.batch * directions
    all_frames = shape.batch * shape.frames
    programs, most_parts = ceiling(rows, sizes.table_rows), ceiling(shape.far, sizes.stage)
    padded, stages, stage_rows = lanes * shape.blocks * sizes.block, lanes * staged, sizes.stage * sizes.block
    wanted = {
        "onward": (2, wide, wide),
        "table": (rows, wide),
        **dict.fromkeys(("first", "last"), (wide,)),
        "slack": (programs,),
        "shift": (1,),
        "tops": (shape.batch, shape.frames),
        "gathered": (padded, wide),
        "product": (lanes * shape.blocks, wide),
        **dict.fromkeys(("source", "arrived"), (padded * keep, wide)),
        "exponent": (padded * keep,),
        **dict.fromkeys(("z_value", "z_power", "flags", "count"), (lanes,)),
        "outside": (stages, stage_rows, wide),
        "stage_reals": (stages, 6, wide),
        "stage_ints": (stages, 7, wide),
        "stage_tops": (stages, 2),
    }
    if staged and shape.blocks > sizes.stage:
        wanted |= {"partial": (lanes, most_parts, stage_rows, wide), "betweens": (lanes, most_parts, wide)}
    grid = (shape.batch, directions)
    launches = [Launch("prepare", (programs + ceiling(all_frames, sizes.threads),))]
    for begin in range(0, shape.blocks, sizes.stage) if staged else [0]:
        parts = min(most_parts, begin // sizes.stage)
        numbers = {"begin": begin, "parts": parts}
        if parts:  # what earlier stages bring into a stage is summed before it
            launches.append(Launch("outside_parts", (*grid, sizes.stage * parts), numbers))
            launches.append(Launch("outside_sums", (*grid, sizes.stage), numbers))
        launches.append(Launch("messages", grid, numbers))
    numbers = {"rows": rows, "rows_each": sizes.table_rows, "programs": programs, "all_frames": all_frames}
    numbers |= {"keep": int(keep), "saturate": int(saturate), "staged": int(staged)}
    return made("messages", shape, wanted, launches, numbers)


@functools.lru_cache(maxsize=64)
def plan_counts(shape: Shape) -> Plan:
    """Every expected count, and what they must add up to.

    To be bound besides: label, starts_out, ends_out (B, T, C), duration_out (B, K, C), transition_out
    (B, C, C), mass_error, mass_frame, imbalance (B,).
    """
    sizes, batch, tiles, wide, far = shape.sizes, shape.batch, shape.tiles, shape.wide, shape.far
    crossings = ceiling(shape.frames, sizes.count_frames)
    chunk_blocks = max(sizes.count_blocks, far // 2)  # by K alone: padding must not regroup a sum
    near_chunks, chunks = ceiling(shape.blocks, sizes.near_blocks), ceiling(shape.blocks, chunk_blocks)
    wanted = {
        **dict.fromkeys(("totals", "before", "begun", "ended"), (batch, tiles, wide)),
        **dict.fromkeys(("tile_error", "tile_range", "tile_frame"), (batch, tiles)),
        "near": (batch, near_chunks, sizes.block, wide),
        "apart": (batch, chunks, far, 2 * sizes.block, wide),
        "crossed": (batch, crossings, wide, wide),
    }
    launches = [
        Launch("near_durations", (near_chunks, batch), {"each": sizes.near_blocks}, aside=True),
        *([Launch("far_durations", (chunks, batch, far), {"each": chunk_blocks}, aside=True)] if far else []),
        Launch("sum_durations", (shape.longest, batch), aside=True),
        Launch("label_totals", (tiles, batch)),
        Launch("label_sums", (batch,)),
        Launch("label_counts", (tiles, batch)),
        Launch("transitions", (crossings, batch), {"each": sizes.count_frames}),
        Launch("sum_transitions", (shape.labels, batch)),
        Launch("audit", (batch,), joins=True),
    ]
    numbers = {"near_chunks": near_chunks, "chunks": chunks, "crossings": crossings}
    return made("counts", shape, wanted, launches, numbers, plan_messages(shape, 2))


@functools.lru_cache(maxsize=64)
def plan_viterbi(shape: Shape) -> Plan:
    """The best segmentation. To be bound: score, lengths, and with CP columns of float64, -inf where there is
    no label, steps (CP, CP), lasting (K, CP), first_scores and last_scores (CP,).
    """
    states, waiting = (shape.batch, shape.frames, shape.labels), (shape.batch, shape.longest, shape.wide)
    wanted: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("ring", "spans"), waiting),
        **dict.fromkeys(("alpha", "lasts"), states),
        "best_score": (shape.batch,),
        "ends": states[:2],
    }
    return made("best", shape, wanted, [Launch("best_path", (shape.batch,))], {})


SCORES_EACH = 8
"""Scores that a thread takes."""


@functools.lru_cache(maxsize=64)
def plan_gradients(shape: Shape, stride: int) -> Plan:
    """A loss's gradient from the counts: by_log_z (B,) float64 is read for by_score, by_transition,
    by_duration, by_start and by_end, of their inputs' shapes. Its stride is 0 where all are the same number,
    as the gradient of a sum is: a copy would be one more launch.
    """
    threads, scores = shape.sizes.threads, shape.frames * shape.labels
    shared = (shape.longest + shape.labels + 2) * shape.labels
    launches = [
        Launch("score_gradients", (ceiling(scores, threads * SCORES_EACH), shape.batch)),
        Launch("shared_gradients", (ceiling(shared, threads),)),
    ]
    return made("gradients", shape, {}, launches, {"scores": scores, "stride": stride})
