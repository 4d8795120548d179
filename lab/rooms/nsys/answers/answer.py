"""Answers, their checks, and the data of a cell that they are computed from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pandas as pd

from lab.core.words import plural
from lab.perfmodel.boards import Board, board_of, matrix_rate
from lab.rooms.nsys.analyze import CellTables, of_phase
from lab.rooms.nsys.captures.phases import sample_sd, summed
from lab.rooms.nsys.layout import CellFiles, CellResult
from lab.rooms.nsys.recording import FINAL, SCORES, SOFTMAX, Recording
from lab.stats.means import Sample, mean_ci

AGREE = 0.05  # relative difference below which two clocks agree


def times_nest(cell: CellData) -> tuple[Check, ...]:
    """busy <= span <= wall: every phase ends with a synchronisation inside its range."""
    name, row = "busy <= span <= wall", cell.phase("forward")
    if row is None or not cell.has_kernels:
        return (Check(name, OPEN, "kernels", "none"),)
    passed = row.busy_ms <= row.span_ms * (1 + 1e-9) and row.span_ms <= row.wall_ms * (1 + 1e-3)
    times = f"{row.busy_ms:.3f} <= {row.span_ms:.3f} <= {row.wall_ms:.3f} ms"
    return (check(name, passed, "in this order", times),)


def clocks_agree(cell: CellData) -> Check:
    """Python's clock around each `forward` against the range itself.

    The median over the steps, so that one interrupted step does not decide.
    """
    name = "Python's clock around the range agrees with it"
    result, walls_ms = cell.files.result, _walls_ms(cell)
    python_ms = [step["forward_ms"] for step in result.steps if "forward_ms" in step] if result else []
    if not python_ms or len(python_ms) != len(walls_ms):
        return Check(name, OPEN, "one time in cell.json per step", f"{len(python_ms)} and {len(walls_ms)}")
    range_ms = statistics.median(walls_ms)
    excess_ms = statistics.median(clock - wall for clock, wall in zip(python_ms, walls_ms, strict=True))
    passed = -0.02 * range_ms <= excess_ms <= AGREE * range_ms + 0.2
    return check(name, passed, f"{range_ms:.3f} ms", f"{range_ms + excess_ms:.3f} ms")


def _walls_ms(cell: CellData) -> list[float]:
    """Wall ms of `forward` in each step, in order."""
    if cell.recording is None:
        return []
    rows = cell.recording.ranges[cell.recording.ranges["name"] == "forward"]
    return [float(ns) / 1e6 for ns in rows["own_ns"].groupby(rows["step"]).sum()]


def launches_repeat(cell: CellData, top: pd.Series) -> Check:
    """Launches per pass are equal in every step; otherwise the counts of each step are listed."""
    row = cell.phase("forward")
    assert row is not None and cell.recording is not None
    passed = bool(top.same_in_all_steps and row.same_in_all_steps)
    counts = f"{top.launches:g} of the top kernel, {row.kernels:g} in all"
    if not passed:
        forward = of_phase(cell.recording.ops[cell.recording.ops["kernel"]], "forward")
        of_top = forward["step"][forward["name"] == top["name"]]
        by_step = [
            f"{(of_top == step).sum()} of {(forward['step'] == step).sum()}" for step in cell.recording.steps
        ]
        counts = f"by step: {', '.join(by_step)}"
    return check("launches per pass are the same in every step", passed, "integers", counts)


def gemm_counts(cell: CellData) -> list[Check]:
    """GEMM kernels against the model: 9 L + 1 forward, twice as many backward, split-K sums not counted."""
    spec, checks = cell.files.spec, []
    due = {"forward": spec.forward_gemms, "backward": spec.backward_gemms} if spec else {}
    for phase in ("forward", "backward"):
        row = cell.phase(phase)
        if row is None:
            continue
        name, matmuls = f"GEMMs of {phase} are the model's", f"{row.matmuls:g}"
        if spec is None:
            checks.append(Check(name, OPEN, "the model's shape", matmuls))
        else:
            checks.append(check(name, row.matmuls == due[phase], str(due[phase]), matmuls))
    return checks


def every_kernel_has_a_phase(cell: CellData) -> Check:
    """Every kernel launched in a step belongs to exactly one phase."""
    assert cell.recording is not None
    ops, ambiguous = cell.recording.ops, cell.recording.ambiguous
    kernels = ops[ops["kernel"]]
    outside = int((kernels["phase"] == "").sum())
    counts = f"{len(kernels) - outside} of {len(kernels)}"
    if ambiguous:
        counts += f", {ambiguous} ambiguous"
    passed = outside == 0 and not ambiguous
    return check("every kernel of a step has a phase", passed, f"{len(kernels)} of {len(kernels)}", counts)


OK, FAILED, OPEN = "ok", "failed", "not checked"


class Check(msgspec.Struct, frozen=True, rename={"actual": "found"}):
    """What was expected, what the recording has, and whether they agree (`ok`, `failed`, `not checked`)."""

    name: str
    state: str
    expected: str
    actual: str

    def line(self, *, with_state: bool = True) -> str:
        """`[ok] name: expected 1, found 1`."""
        state = f"[{self.state}] " if with_state else ""
        return f"{state}{self.name}: expected {self.expected}, found {self.actual}"


@dataclass(frozen=True)
class Answer:
    """A sentence, the numbers in it, and its checks. `is_answered` is false where the data cannot answer."""

    part: str
    cell: str
    sentence: str
    values: dict[str, float | str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    is_answered: bool = True

    @property
    def state(self) -> str:
        """`failed` if a check failed, `no answer` without one, else `ok`."""
        if not self.is_answered:
            return "no answer"
        return FAILED if any(check.state == FAILED for check in self.checks) else OK


@dataclass(frozen=True)
class CellData:
    """A cell with the recording and tables of one process; None without a readable capture."""

    files: CellFiles
    recording: Recording | None = None
    tables: CellTables | None = None

    @property
    def label(self) -> str:
        return self.files.label

    @property
    def size_and_context(self) -> tuple[str, int]:
        return self.files.cell.size, self.files.cell.context

    @property
    def has_kernels(self) -> bool:
        return self.recording is not None and self.recording.has_kernels

    def phase(self, name: str) -> pd.Series | None:
        """A phase's row; None where the capture has no such phase."""
        if self.tables is None:
            return None
        rows = self.tables.phases[self.tables.phases["phase"] == name]
        return rows.iloc[0] if len(rows) else None


def no_answer(part: str, cell: CellData, reason: str) -> Answer:
    """An answer that only states why the question is open."""
    if cell.recording is not None and not cell.recording.has_kernels:
        reason = "the capture has no GPU kernels (no_gpu_data): it was made on a CPU or without GPU tracing"
        if cell.recording.outside_steps:
            operations = plural(cell.recording.outside_steps, "GPU operation")
            reason = (
                f"no step owns any of the {operations} recorded (no_gpu_data): their launches are unknown"
            )
    return Answer(part, cell.label, f"Cannot be answered: {reason}.", is_answered=False)


def check(name: str, passed: bool, expected: str, actual: str) -> Check:
    return Check(name, OK if passed else FAILED, expected, actual)


def spread(sample: Sample) -> str:
    """`2.58 ± 0.17 ms (n = 3)`: mean and standard deviation; without the latter for a single step."""
    if sample.n == 1:
        return f"{sample.mean:.2f} ms (n = 1)"
    return f"{sample.mean:.2f} ± {sample.sd:.2f} ms (n = {sample.n})"


def interval_values(name: str, unit: str, per_step: np.ndarray) -> dict[str, float | str]:
    """The 95 % interval of a mean over steps, as `name_low_unit` and `name_high_unit`; {} for one step."""
    if len(per_step) < 2:
        return {}
    low, high = mean_ci(Sample(float(per_step.mean()), sample_sd(per_step), len(per_step)))
    return {f"{name}_low_{unit}": low, f"{name}_high_{unit}": high}


def kernel_ns_by_step(
    cell: CellData, phases: Sequence[str], chosen: Callable[[pd.DataFrame], pd.Series]
) -> np.ndarray:
    """Time of the chosen kernels in each step (steps,) in ns, in these phases; in the whole step for none."""
    assert cell.recording is not None
    ops = cell.recording.ops
    mask = ops["kernel"].astype(bool) & chosen(ops)
    if phases:
        mask &= ops["phase"].isin(phases)
    ops = ops[mask]
    dur_ns = (ops["end_ns"] - ops["start_ns"]).to_numpy(np.int64)
    return summed(dur_ns, ops["step"].to_numpy(np.int64), len(cell.recording.steps))


def python_sample(result: CellResult | None, phase: str) -> Sample | None:
    """ms of a phase over the steps by Python's clock; None where it was not timed."""
    times = [step[f"{phase}_ms"] for step in result.steps if f"{phase}_ms" in step] if result else []
    if not times:
        return None
    return Sample(sum(times) / len(times), statistics.stdev(times) if len(times) > 1 else 0.0, len(times))


# Question e: softmax beside the matrix products of attention.

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
