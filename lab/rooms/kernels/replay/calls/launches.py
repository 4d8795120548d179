"""GPU rows of a capture as the launches that a plan names."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import KERNEL, MEMCPY, MEMSET, Capture, shared_memory_bytes
from lab.rooms.kernels.replay.args import Launch

KINDS = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset"}
_GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def launches_of(capture: Capture, rows: np.ndarray) -> list[Launch]:
    """The launches of these GPU rows (n,)."""
    ops = capture.ops.take(rows)
    sizes = np.maximum(np.stack([getattr(ops, name) for name in _GEOMETRY], axis=1), 0).tolist()
    columns = zip(
        capture.text(ops.name_id).tolist(),
        ops.kind.tolist(),
        sizes,
        np.maximum(shared_memory_bytes(ops), 0).tolist(),
        ops.bytes.tolist(),
        strict=True,
    )
    return [
        Launch(
            name=name,
            kind=KINDS.get(kind, "kernel"),
            grid=tuple(size[:3]),
            block=tuple(size[3:]),
            smem_bytes=smem_bytes,
            bytes=num_bytes,
        )
        for name, kind, size, smem_bytes, num_bytes in columns
    ]
