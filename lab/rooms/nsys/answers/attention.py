"""Question e: softmax beside the matrix products of attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from lab.perfmodel.boards import Board, board_of, matrix_rate
from lab.rooms.nsys.answers.answer import (
    OPEN,
    Answer,
    CellData,
    Check,
    check,
    interval_values,
    kernel_ns_by_step,
    no_answer,
)
from lab.rooms.nsys.recording import FINAL, SCORES, SOFTMAX

MAX_BOARD_PERCENT = 105.0  # a clock above the data sheet's
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def part_e(cell: CellData, _: Sequence[CellData]) -> Answer:
    """Softmax beside attention's matrix products, per layer: time, FLOPs and the rates achieved."""
    assert cell.tables is not None
    rows = {row["part"]: row for _, row in cell.tables.parts.iterrows()}
    if SOFTMAX not in rows:
        return no_answer("e", cell, "the capture has no ranges inside attention")
    if SCORES not in rows or not rows[SCORES]["matmul_us_per_layer"] > 0:
        return no_answer("e", cell, "no GEMM in the range of the scores")
    softmax_us = float(rows[SOFTMAX]["us_per_layer"])
    scores_us = float(rows[SCORES]["matmul_us_per_layer"])
    values: dict[str, float | str] = {f"{part}_us": float(row["us_per_layer"]) for part, row in rows.items()}
    softmax_ns = kernel_ns_by_step(cell, [], lambda ops: ops["part"] == SOFTMAX)
    values |= interval_values("softmax", "us", softmax_ns / rows[SOFTMAX]["ranges"] / 1e3)
    values |= {"qk_gemm_us": scores_us, "time_ratio": softmax_us / scores_us}
    sentence = (
        f"Per layer, softmax takes {softmax_us:.1f} µs and the GEMM of QK^T {scores_us:.1f} µs: "
        f"{softmax_us / scores_us:.2f} times as long"
    )
    if FINAL in rows:
        values["av_gemm_us"] = float(rows[FINAL]["matmul_us_per_layer"])
        sentence += f" (weights times values: {values['av_gemm_us']:.1f} µs)"
    sentence += _by_flop(cell, rows, values)
    return Answer("e", cell.label, sentence, values, tuple(_checks(cell, rows, values)))


def _by_flop(cell: CellData, rows: dict[str, pd.Series], values: dict[str, float | str]) -> str:
    if cell.files.spec is None or pd.isna(rows[SOFTMAX]["flop"]):
        return "; FLOPs are unknown without the model's shape."
    ratio = rows[SCORES]["flop"] / rows[SOFTMAX]["flop"]
    softmax, gemm = rows[SOFTMAX]["gb_per_s"], rows[SCORES]["tflops"]
    values |= {"flop_ratio": ratio, "softmax_gb_per_s": softmax, "qk_tflops": gemm}
    of_memory = of_rate = ""
    if (board := _board(cell)) is not None:
        of_memory = f", {100 * softmax * 1e9 / board.bytes_per_s:.0f} % of the board's"
        rate = _rate(cell, board)
        if peak := board.flops_per_s(rate):
            values["qk_board_percent"] = percent = 100 * gemm * 1e12 / peak
            of_rate = f", {percent:.0f} % of the board's in {rate}"
    return (
        f", for 1/{ratio:.1f} of the FLOPs: softmax moves memory (at least {softmax:.0f} GB/s{of_memory}), "
        f"the GEMM computes ({gemm:.1f} TFLOP/s{of_rate})."
    )


def _board(cell: CellData) -> Board | None:
    """The data sheet of the GPU that was recorded, or that the workload saw."""
    assert cell.recording is not None
    device = cell.files.result.device if cell.files.result else {}
    return cell.recording.board or board_of(str(device.get("name", "")), device.get("sm_count"))


def _rate(cell: CellData, board: Board) -> str | None:
    """The rate of the board that the scores' products compete with."""
    assert cell.recording is not None
    ops, dtype = cell.recording.ops, cell.files.dtype
    if dtype == "tf32":
        return "tf32" if "tf32" in board.tflops else "fp32"
    kernels = ops["name"][(ops["part"] == SCORES) & (ops["class"] == "gemm")].unique()
    # A kernel's name may not tell: float32 is what the workload computes in unless it is asked for TF32.
    rate = matrix_rate(board, _DTYPES[dtype], " ".join(kernels))
    return rate or ("fp32" if dtype == "fp32" else None)


def _checks(cell: CellData, rows: dict[str, pd.Series], values: dict[str, float | str]) -> Iterable[Check]:
    for part in (SCORES, FINAL):
        if part in rows:
            matmuls = rows[part]["matmuls_per_layer"]
            yield check(f"one GEMM in every `{part}`", matmuls == 1, "1", f"{matmuls:g}")
    name, spec = "ranges are as many as layers", cell.files.spec
    if spec is None:
        yield Check(name, OPEN, "the model's shape", "unknown")
        return
    counts = sorted({float(row["ranges"]) for row in rows.values()})
    listed = ", ".join(f"{count:g}" for count in counts)
    yield check(name, counts == [spec.layers], str(spec.layers), listed)
    ratio, due = rows[SCORES]["flop"] / rows[SOFTMAX]["flop"], 2 * spec.d_head / 5
    name = "FLOPs of QK^T over softmax are 2 d_head / 5"
    yield check(name, abs(ratio - due) < 1e-9, f"{due:g}", f"{ratio:g}")
    if "qk_board_percent" in values:
        percent, name = float(values["qk_board_percent"]), "the GEMM of QK^T is not faster than its board"
        passed = percent <= MAX_BOARD_PERCENT
        yield check(name, passed, f"at most {MAX_BOARD_PERCENT:g} %", f"{percent:.0f} %")
