"""Ceilings of GPUs by their data sheets: dense FLOP/s and bytes/s."""

from __future__ import annotations

import msgspec

# Part of the device's name -> dense float16 and float32 TFLOP/s, TB/s of memory. Source: the vendors' data
# sheets (SXM figures if the name does not say; no sparsity).
_SHEETS: tuple[tuple[str, tuple[float, float, float]], ...] = (
    ("H200", (989.5, 66.9, 4.8)),
    ("H100 PCIe", (756.0, 51.2, 2.0)),
    ("H100", (989.5, 66.9, 3.35)),
    ("B200", (2250.0, 75.0, 8.0)),
    ("A100-SXM4-40GB", (312.0, 19.5, 1.555)),
    ("A100-PCIE-40GB", (312.0, 19.5, 1.555)),
    ("A100", (312.0, 19.5, 2.039)),
    ("A6000", (154.8, 38.7, 0.768)),
    ("L40S", (362.0, 91.6, 0.864)),
    ("V100", (125.0, 15.7, 0.9)),
    ("T4", (65.0, 8.1, 0.32)),
    ("P100", (21.2, 10.6, 0.732)),
    ("1080 Ti", (0.177, 11.3, 0.484)),
    ("3090", (71.0, 35.6, 0.936)),
    ("4090", (165.2, 82.6, 1.008)),
    ("MI300X", (1307.4, 163.4, 5.3)),
    ("MI250X", (383.0, 47.9, 3.2)),
    ("MI210", (181.0, 22.6, 1.6)),
)


class Roof(msgspec.Struct, frozen=True):
    """The ceilings of one GPU: FLOP/s by dtype, bytes/s."""

    gpu: str
    half_flops: float
    single_flops: float
    bytes_per_s: float

    def flops(self, dtype: str) -> float:
        return self.single_flops if dtype in ("float32", "float64") else self.half_flops


def roof_of(gpu: str) -> Roof | None:
    """The ceilings of a GPU by its name; None if it is not in the table."""
    for part, (half, single, memory) in _SHEETS:
        if part.lower() in gpu.lower():
            return Roof(gpu, half * 1e12, single * 1e12, memory * 1e12)
    return None
