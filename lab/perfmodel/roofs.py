"""The roof of one op on one board: the least time that its data sheet allows, by arithmetic and by memory."""

from __future__ import annotations

import msgspec

from lab.perfmodel.boards import Board, matrix_rate, vector_rate
from lab.perfmodel.calls import Work

_ROUNDING = 0.005  # recorders round times; data sheets round peaks


class Roof(msgspec.Struct, frozen=True):
    """Least seconds of an op; rate names the board's peak that its kernels compete with."""

    rate: str
    peak_flops_per_s: float
    compute_s: float
    memory_s: float

    @property
    def least_s(self) -> float:
        return max(self.compute_s, self.memory_s) if self.memory_s == self.memory_s else self.compute_s

    @property
    def bound_by(self) -> str:
        return "compute" if self.compute_s >= self.memory_s else "memory"


def roof_of(work: Work | None, board: Board | None, kernels: str) -> Roof | None:
    """Return the roof of an op; None where the board, its peak for this type, or the work is not known.

    kernels: names of all kernels that the op launched, as recorded; they tell TF32 from float32.
    """
    if work is None or board is None or work.unit == "link":
        return None
    if work.unit == "vector":
        rate = vector_rate(board, work.dtype)
    else:
        rate = matrix_rate(board, work.dtype, kernels)
    peak = board.flops_per_s(rate)
    if rate is None or peak is None:
        return None
    return Roof(rate, peak, work.flops / peak, work.num_bytes / board.bytes_per_s)


def excess_of(roof: Roof, seconds: float) -> str:
    """Say why an op cannot have taken so little time; "" if it can.

    Nothing computes faster than its peak, so the FLOPs, the board or the times are wrong. Faster than memory
    is possible where an op finds its data in a cache.
    """
    if roof.compute_s > seconds * (1 + _ROUNDING):
        percent = f"{100 * roof.compute_s / seconds:.0f} %" if seconds > 0 else "infinitely"
        return f"{percent} of the {roof.rate} peak cannot be: the FLOPs, the board or the times are wrong"
    return "faster than memory: its data were in a cache" if roof.memory_s > seconds * (1 + _ROUNDING) else ""
