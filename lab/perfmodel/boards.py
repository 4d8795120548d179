"""Boards by their data sheets (boards.toml): the rate a kernel competes with, the least time of an op."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from lab.perfmodel.calls import Work
from lab.perfmodel.dtypes import dtype_name, rate_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ROUNDING = 0.005  # recorders round times; data sheets round peaks
# With fewer multiprocessors than this share of the board's, a device is a part of it (MIG slice, CPX mode).
_WHOLE_BOARD_SHARE = 0.9
# What kernels' names say of the units they use: cuBLAS and cutlass write tf32 or s1688gemm for TF32, simt or
# sgemm for vector units; Tensile writes the matrix instruction (`_MI16x16x4`), with MX for TF32.
_TF32 = re.compile(r"tf32|xf32|_MX_|_s1688gemm", re.IGNORECASE)
_MATRIX_AMD = re.compile(r"_MI\d+x\d+x\d+")
_VECTOR = re.compile(r"simt|sgemm|gemv|gemmSN|dot_kernel", re.IGNORECASE)
_HALF_ACCUMULATED = re.compile(r"(^|_)hgemm|_h(884|1688|16816)gemm", re.IGNORECASE)


class Board(msgspec.Struct, frozen=True):
    """One device by its data sheet: dense TFLOP/s by rate (see boards.toml), TB/s of memory, the source."""

    names: tuple[str, ...]
    multiprocessors: int
    tflops: dict[str, float]
    tb_per_s: float
    source: str

    @property
    def bytes_per_s(self) -> float:
        return self.tb_per_s * 1e12

    def flops_per_s(self, rate: str | None) -> float | None:
        """Return the peak of a rate in FLOP/s; None if the sheet has none."""
        tflops = self.tflops.get(rate) if rate else None
        return None if tflops is None else tflops * 1e12


@functools.cache
def boards() -> Mapping[str, Board]:
    """Every known device by its name in lower case."""
    text = Path(__file__).with_name("boards.toml").read_text()
    rows = msgspec.convert(tomllib.loads(text)["board"], list[Board])
    return {name.lower(): board for board in rows for name in board.names}


def board_of(device_name: str, multiprocessors: int | None = None) -> Board | None:
    """Return the data sheet of a device, None if it is unknown or only a part of a board.

    device_name: as torch or the vendor's tool prints it; "NVIDIA H100 NVL" is another than
    "NVIDIA H100 80GB HBM3".
    multiprocessors: SMs or compute units that the device reported, if they were recorded.
    """
    board = boards().get(device_name.strip().lower())
    if board and multiprocessors and multiprocessors < _WHOLE_BOARD_SHARE * board.multiprocessors:
        return None
    return board


def matrix_rate(board: Board, dtype: str, kernels: str) -> str | None:
    """Name the rate of `board` that a matrix product competes with; None where its kernels do not tell.

    dtype: of the factors, in any recorder's spelling; kernels: names of the kernels that ran. float32 factors
    run on vector units or as TF32 on matrix units, which only the kernel's name tells; float16 without
    matrix units is widened to float32 (`maxwell_fp16_sgemm`) or computed by packed halves (`hgemm`).
    """
    rate = rate_name(dtype)
    if rate == "fp32":
        return _float32_rate(board, kernels)
    if rate == "fp64":
        return "fp64_matrix" if "fp64_matrix" in board.tflops else "fp64"
    if rate in ("fp16", "bf16") and "fp16" not in board.tflops:
        halves = rate == "fp16" and _HALF_ACCUMULATED.search(kernels)
        return "fp16_vector" if halves else "fp32"
    if rate == "fp16" and "fp16_acc16" in board.tflops and _HALF_ACCUMULATED.search(kernels):
        return "fp16_acc16"
    return rate if rate in board.tflops else None


def _float32_rate(board: Board, kernels: str) -> str | None:
    if "tf32" in board.tflops and _TF32.search(kernels):
        return "tf32"
    if _MATRIX_AMD.search(kernels):
        return "fp32_matrix" if "fp32_matrix" in board.tflops else None
    if "tf32" not in board.tflops and "fp32_matrix" not in board.tflops:
        return "fp32"
    return "fp32" if _VECTOR.search(kernels) else None


def vector_rate(board: Board, dtype: str) -> str | None:
    """Name the rate of elementwise work: halves are computed in float32 (torch's opmath)."""
    if dtype_name(dtype) is None:
        return None
    rate = "fp64" if dtype_name(dtype) == "float64" else "fp32"
    return rate if rate in board.tflops else None


class Roof(msgspec.Struct, frozen=True):
    """Least seconds of an op by its board's data sheet; rate names the peak that its kernels compete with."""

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
