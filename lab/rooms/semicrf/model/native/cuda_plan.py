"""Which kernels of semicrf.cu run on what, decided by the shape alone: nothing here touches a GPU.

A plan names its arguments: numbers, places in a workspace, and tensors that the caller binds. It is made once
per shape; a call then allocates, adds addresses and launches, so that little of the host's time is spent on
a problem that the GPU does in a third of a millisecond.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch

ALIGNED_BYTES = 256
BYTES = {torch.float64: 8, torch.float32: 4, torch.int32: 4, torch.int64: 8}


@dataclass(frozen=True)
class Sizes:
    """How the kernels divide the work: sums are grouped by these and by K, never by batch or padding."""

    block: int = 16
    """Frames in a block."""
    threads: int = 256
    """For a lane: a direction of a sequence. Fewer where many lanes must share the multiprocessors."""
    tile: int = 32
    """Frames in a tile of the label counts."""
    stage: int = 16
    """Blocks in a stage."""
    parts: int = 8
    """Into which the blocks before one are divided at the fewest labels; half as many at twice the labels."""
    count_frames: int = 64
    """Frames in a chunk of the transition counts."""
    count_blocks: int = 16
    """Blocks in a chunk of the duration counts, more for long durations: partial sums take K / chunk rows."""
    near_blocks: int = 2
    """And where segments start and end in one block."""
    table_rows: int = 64
    """Rows of the duration table that one block of threads weighs."""
    narrowest: int = 32
    """Labels are padded to this, or twice or four times as many: whole warps."""

    def padded(self, labels: int) -> int:
        return next(self.narrowest * more for more in (1, 2, 4) if labels <= self.narrowest * more)

    def parts_at(self, wide: int) -> int:
        return self.parts * self.narrowest // wide

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
    """A kernel; an argument is a number, the name of a buffer or of a tensor to be bound, or nothing.

    A run of kernels that go `aside` may overlap what follows them, up to the first one that `joins`.
    """

    kernel: str
    grid: tuple[int, ...]
    threads: int
    args: tuple[str | int | None, ...]
    aside: bool = False
    joins: bool = False


@dataclass(frozen=True, eq=False)
class Plan:
    """Launches and the buffers they work on. `workspace` is the name of the tensor that holds the buffers."""

    workspace: str
    buffers: dict[str, Buffer]
    bytes: int
    launches: tuple[Launch, ...]
    names: tuple[str, ...]
    """Tensors whose addresses are added, in this order."""
    offsets: np.ndarray
    bases: np.ndarray
    """Per argument of all launches: a number or an offset, and which address it is added to (0 for none)."""

    def slots(self, addresses: Iterable[int]) -> np.ndarray:
        """The arguments' 8-byte values for these addresses of `names`."""
        values: np.ndarray = self.offsets + np.array([0, *addresses], np.uint64)[self.bases]
        return values


def made(
    workspace: str, wanted: dict[str, Wanted], launches: list[Launch], before: Plan | None = None
) -> Plan:
    """A plan; buffers of the plan `before` it can be named too."""
    buffers, size = placed(wanted)
    where = {
        name: (plan.workspace, at.offset) for plan in (before,) if plan for name, at in plan.buffers.items()
    }
    where |= {name: (workspace, at.offset) for name, at in buffers.items()}
    names: dict[str, int] = {}
    pairs = [resolved(arg, where, names) for launch in launches for arg in launch.args]
    offsets, bases = zip(*pairs, strict=True)
    return Plan(
        workspace,
        buffers,
        size,
        tuple(launches),
        tuple(names),
        np.array(offsets, np.int64).astype(np.uint64),
        np.array(bases, np.intp),
    )


Wanted = tuple[torch.dtype, tuple[int, ...]]


def placed(wanted: dict[str, Wanted]) -> tuple[dict[str, Buffer], int]:
    """Buffers one after the other, aligned; and their bytes."""
    buffers, at = {}, 0
    for name, (dtype, shape) in wanted.items():
        buffers[name] = Buffer(dtype, shape, at)
        at += ceiling(buffers[name].bytes, ALIGNED_BYTES) * ALIGNED_BYTES
    return buffers, at


def resolved(
    arg: str | int | None, where: dict[str, tuple[str, int]], names: dict[str, int]
) -> tuple[int, int]:
    """An offset or number, and the index of the address it is added to; new names are numbered from 1."""
    if not isinstance(arg, str):
        return arg or 0, 0
    base, offset = where.get(arg, (arg, 0))
    return offset, names.setdefault(base, len(names) + 1)


def ceiling(amount: int, each: int) -> int:
    return -(-amount // each)


@functools.lru_cache(maxsize=64)
def plan_messages(shape: Shape, directions: int, saturate: bool = False) -> Plan:
    """The model's weights and the passes: with two directions all messages are kept, with one only log Z.

    To be bound: score, transition, duration, start, end, lengths; log_z (B,) is written, and so are z_value,
    z_power, flags and count of each lane (direction of a sequence). With `saturate` weights are 0 and 1.
    """
    sizes, keep = shape.sizes, directions == 2
    rows = (shape.far + 2) * sizes.block
    programs, lanes = ceiling(rows, sizes.table_rows), shape.batch * directions
    wanted = {
        **weight_buffers(shape, rows, programs),
        **message_buffers(shape, lanes, keep),
        "z_value": (torch.float64, (lanes,)),
        **dict.fromkeys(("z_power", "flags", "count"), (torch.int32, (lanes,))),
    }
    all_frames = shape.batch * shape.frames
    numbers = (shape.labels, shape.longest, rows, sizes.table_rows, int(saturate), programs, all_frames)
    weigh = Launch(
        "prepare",
        (programs + ceiling(all_frames, sizes.threads),),
        sizes.threads,
        (*("transition", "duration", "start", "end", *WEIGHTS, "score", "tops"), *numbers),
    )
    walk = staged(shape, directions, programs, saturate) if shape.far > sizes.stage else []
    walk = walk or [pass_on(shape, directions, programs, saturate, None)]
    if shape.far > sizes.stage:
        wanted |= stage_buffers(shape, lanes)
    return made("messages", wanted, [weigh, *walk])


WEIGHTS = ("onward", "table", "first", "last", "slack", "shift")
KEPT = ("source", "arrived", "exponent")
STAGES = ("outside", "stage_reals", "stage_ints", "stage_tops")


def weight_buffers(shape: Shape, rows: int, programs: int) -> dict[str, Wanted]:
    real, wide = shape.real, shape.wide
    return {
        "onward": (real, (2, wide, wide)),
        "table": (real, (rows, wide)),
        "first": (real, (wide,)),
        "last": (real, (wide,)),
        "slack": (real, (programs,)),
        "shift": (torch.float64, (1,)),
        "tops": (real, (shape.batch, shape.frames)),
    }


def message_buffers(shape: Shape, lanes: int, keep: bool) -> dict[str, Wanted]:
    rows, real = lanes * shape.blocks * shape.sizes.block, shape.real
    found: dict[str, Wanted] = {
        "gathered": (real, (rows, shape.wide)),
        "product": (real, (lanes * shape.blocks, shape.wide)),
    }
    if keep:
        found |= {"source": (real, (rows, shape.wide)), "arrived": (real, (rows, shape.wide))}
        found["exponent"] = (torch.int32, (rows,))
    return found


def stage_buffers(shape: Shape, lanes: int) -> dict[str, Wanted]:
    stage, parts = shape.sizes.stage, ceiling(shape.far, shape.sizes.stage)
    rows = stage * shape.sizes.block
    return {
        "outside": (shape.real, (lanes, rows, shape.wide)),
        "stage_reals": (shape.real, (lanes, 6, shape.wide)),
        "stage_ints": (torch.int32, (lanes, 7, shape.wide)),
        "stage_tops": (torch.float64, (lanes, 2)),
        "partial": (shape.real, (lanes, parts, rows, shape.wide)),
        "betweens": (shape.real, (lanes, parts, shape.wide)),
    }


def pass_on(shape: Shape, directions: int, slacks: int, saturate: bool, begin: int | None) -> Launch:
    """The passes through all blocks, or through the stage that begins with a block."""
    keep, staging = directions == 2, begin is not None
    buffers = (
        *("score", "tops", *WEIGHTS, "lengths", "gathered", "product"),
        *(name if keep else None for name in KEPT),
        *("z_value", "z_power", "log_z", "flags", "count"),
        *(name if staging else None for name in STAGES),
    )
    counts = (shape.frames, shape.labels, shape.far, shape.blocks, slacks)
    numbers = (*counts, int(keep), int(saturate), int(staging), begin or 0)
    return Launch("messages", (shape.batch, directions), shape.sizes.threads, (*buffers, *numbers))


def staged(shape: Shape, directions: int, slacks: int, saturate: bool) -> list[Launch]:
    """Stage after stage; what earlier ones bring into a stage is summed before it."""
    found, stage, most = [], shape.sizes.stage, ceiling(shape.far, shape.sizes.stage)
    for begin in range(0, shape.blocks, stage):
        parts, lanes = min(most, begin // stage), (shape.batch, directions)
        if parts:
            args = ("table", "lengths", "gathered", "product", "partial", "betweens")
            numbers = (shape.frames, shape.blocks, shape.far, begin, parts)
            found += [
                Launch("outside_parts", (*lanes, stage * parts), shape.wide, (*args, *numbers)),
                Launch(
                    "outside_sums",
                    (*lanes, stage),
                    shape.wide,
                    ("lengths", "partial", "betweens", "outside", shape.frames, begin, parts),
                ),
            ]
        found.append(pass_on(shape, directions, slacks, saturate, begin))
    return found


@functools.lru_cache(maxsize=64)
def plan_counts(shape: Shape) -> Plan:
    """Every expected count, and what they must add up to.

    To be bound besides: label, starts_out, ends_out (B, T, C), duration_out (B, K, C), transition_out
    (B, C, C), mass_error, mass_frame, imbalance (B,).
    """
    sizes, batch, tiles = shape.sizes, shape.batch, shape.tiles
    near_chunks = ceiling(shape.blocks, sizes.near_blocks)
    each = max(sizes.count_blocks, shape.far // 2)  # by K alone: padding must not regroup a sum
    chunks, crossings = ceiling(shape.blocks, each), ceiling(shape.frames, sizes.count_frames)
    real, wide, double = shape.real, shape.wide, torch.float64
    wanted: dict[str, Wanted] = {
        **dict.fromkeys(("totals", "before", "begun", "ended"), (double, (batch, tiles, wide))),
        **dict.fromkeys(("tile_error", "tile_range"), (double, (batch, tiles))),
        "tile_frame": (torch.int64, (batch, tiles)),
        "near": (real, (batch, near_chunks, sizes.block, wide)),
        "apart": (real, (batch, chunks, shape.far, 2 * sizes.block, wide)),
        "crossed": (real, (batch, crossings, wide, wide)),
    }
    launches = [
        *(replace(one, aside=True) for one in duration_launches(shape, near_chunks, chunks, each)),
        *label_launches(shape),
        *transition_launches(shape, crossings),
        audit_launch(shape),
    ]
    return made("counts", wanted, launches, plan_messages(shape, 2))


BOTH = ("exponent", "z_value", "z_power", "lengths")
"""What all counts read besides some of the messages."""


def label_launches(shape: Shape) -> list[Launch]:
    messages, grid = ("source", "arrived", *BOTH), (shape.tiles, shape.batch)
    outputs = ("label", "starts_out", "ends_out", "tile_error", "tile_frame", "tile_range", "begun", "ended")
    return [
        Launch("label_totals", grid, shape.wide, (*messages, "totals", shape.frames, shape.blocks)),
        Launch("label_sums", (shape.batch,), shape.wide, ("totals", "before", shape.tiles)),
        Launch(
            "label_counts",
            grid,
            shape.wide,
            (*messages, "before", *outputs, shape.frames, shape.labels, shape.blocks),
        ),
    ]


def duration_launches(shape: Shape, near_chunks: int, chunks: int, each: int) -> list[Launch]:
    batch, wide, far = shape.batch, shape.wide, shape.far
    numbers = (shape.frames, shape.labels, shape.blocks, shape.sizes.near_blocks)
    near = Launch(
        "near_durations",
        (near_chunks, batch),
        wide,
        (*("score", "tops", "source", *BOTH, "near"), *numbers),
    )
    apart = Launch(
        "far_durations",
        (chunks, batch, far),
        wide,
        ("gathered", "product", *BOTH, "apart", shape.frames, shape.blocks, each),
    )
    together = Launch(
        "sum_durations",
        (shape.longest, batch),
        wide,
        ("near", "apart", "table", "duration_out", shape.labels, shape.longest, near_chunks, chunks, far),
    )
    return [near, *([apart] if far else []), together]


def transition_launches(shape: Shape, crossings: int) -> list[Launch]:
    numbers = (shape.frames, shape.blocks, shape.sizes.count_frames)
    grid = (crossings, shape.batch)
    return [
        Launch("transitions", grid, shape.sizes.threads, ("arrived", *BOTH, "crossed", *numbers)),
        Launch(
            "sum_transitions",
            (shape.labels, shape.batch),
            shape.wide,
            ("crossed", "onward", "transition_out", shape.labels, crossings),
        ),
    ]


def audit_launch(shape: Shape) -> Launch:
    tiles = ("tile_error", "tile_frame", "tile_range", "begun", "ended")
    counts = ("starts_out", "ends_out", "duration_out", "transition_out", "z_value", "lengths")
    numbers = (shape.frames, shape.labels, shape.longest, shape.tiles)
    args = (*tiles, *counts, "mass_error", "mass_frame", "imbalance", *numbers)
    return Launch("audit", (shape.batch,), shape.sizes.threads, args, joins=True)


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
    counts = ("duration_out", "transition_out", "starts_out", "ends_out", "lengths", "log_z", "by_log_z")
    outputs = ("by_duration", "by_transition", "by_start", "by_end")
    launches = [
        Launch(
            "score_gradients",
            (ceiling(scores, threads * SCORES_EACH), shape.batch),
            threads,
            ("label", "log_z", "by_log_z", "by_score", scores, stride),
        ),
        Launch(
            "shared_gradients",
            (ceiling(shared, threads),),
            threads,
            (*counts, *outputs, shape.batch, shape.frames, shape.labels, shape.longest, stride),
        ),
    ]
    return made("gradients", {}, launches)
