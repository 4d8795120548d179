"""Questions a to e, which of them a cell can answer, and its answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from lab.core.words import plural
from lab.perfmodel.boards import Board, board_of, matrix_rate
from lab.recordings.phase_names import BACKWARD, FORWARD, OPTIMIZER
from lab.rooms.nsys.analyze import MATMUL_CLASSES, of_phase
from lab.rooms.nsys.answers.answer import (
    AGREE,
    Answer,
    Check,
    Values,
    check,
    clocks_agree,
    every_kernel_has_a_phase,
    gemm_counts,
    interval_values,
    launches_repeat,
    no_answer,
    python_sample,
    spread,
    times_nest,
)
from lab.rooms.nsys.config import PART_TYPES, Cell, parts_of
from lab.rooms.nsys.layout import CellData
from lab.rooms.nsys.recording import FINAL, PHASES, SCORES, SOFTMAX, STEP
from lab.stats.means import Sample, difference_ci

NOTABLE_PERCENT = 1.0
MAX_BOARD_PERCENT = 105.0  # a clock above the data sheet's
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def part_b(cell: CellData, _: Sequence[CellData]) -> Answer:
    """The costliest kernel of the forward pass (and of forward plus backward), with its launches per pass."""
    kernels = cell.tables["kernels"]
    forward = of_phase(kernels, FORWARD)
    if forward.empty:
        return no_answer("b", cell, "no kernel in the range `forward`")
    top = forward.iloc[0]
    values: Values = {name: top[name] for name in ("kernel", "launches", "ms", "percent", "name")}
    launches = of_phase(cell.recording.kernels, FORWARD)
    spent_ns = cell.recording.by_step(launches[launches["name"] == top["name"]], "dur_ns")
    values |= interval_values("kernel", "ms", Sample.of(spent_ns / 1e6))
    sentence = f"In forward, {_kernel_sentence(top)}."
    passes = kernels[kernels["phase"].isin((FORWARD, BACKWARD))]
    if (passes["phase"] == BACKWARD).any():
        sums = {"launches": "sum", "ms": "sum", "same_in_all_steps": "all"}
        summed = (
            passes.groupby("name", sort=False)
            .agg({"kernel": "first", "class": "first", **sums})
            .sort_values("ms", ascending=False)
        )
        summed["percent"] = 100 * summed["ms"] / summed["ms"].sum()
        costliest = summed.iloc[0]
        same = "the same kernel" if summed.index[0] == top["name"] else "another one"
        values |= {f"both_{name}": costliest[name] for name in ("kernel", "launches", "ms", "percent")}
        sentence += f" Over forward and backward it is {same}: {_kernel_sentence(costliest)}."
    return Answer("b", cell.label, sentence, values, (launches_repeat(cell, top), *gemm_counts(cell)))


def _kernel_sentence(row: pd.Series) -> str:
    times = f"{row.launches:.1f} launches per pass on average"
    if row.same_in_all_steps:
        times = f"{plural(int(row.launches), 'launch')} per pass"
    return (
        f"`{brief(row.kernel)}` ({row['class']}) costs most: {row.ms:.2f} ms, "
        f"{row.percent:.0f} % of kernel time, {times}"
    )


def brief(name: str) -> str:
    """A kernel's name shortened for a sentence; the table has the full name."""
    return name if len(name) <= 56 else f"{name[:44]}…{name[-11:]}"


def part_c(cell: CellData, _: Sequence[CellData]) -> Answer:
    """Classes other than matrix products with a notable share of the forward pass's kernel time."""
    forward = of_phase(cell.tables["classes"], FORWARD)
    if forward.empty:
        return no_answer("c", cell, "no kernel in the range `forward`")
    not_matmul = forward[~forward["class"].isin(MATMUL_CLASSES)]
    notable = not_matmul[not_matmul["percent"] >= NOTABLE_PERCENT]
    share = float(not_matmul["percent"].sum())
    values: Values = {f"{row['class']}_percent": row.percent for _, row in not_matmul.iterrows()}
    values["not_matmul_percent"] = share
    values |= _share_interval(cell, FORWARD, "not_matmul", lambda classes: ~classes.isin(MATMUL_CLASSES))
    shares = [
        f"{row['class']} {row.percent:.1f} % ({row.launches:g} launch{'' if row.launches == 1 else 'es'})"
        for _, row in notable.iterrows()
    ]
    listed = ", ".join(shares) or "no class of them reaches 1 %"
    sentence = f"{share:.1f} % of forward's kernel time is not matrix products: {listed}."
    total = float(forward["percent"].sum())
    adds_up = check("shares of all classes add up", abs(total - 100) < 1e-6, "100 %", f"{total:.6f} %")
    return Answer("c", cell.label, sentence, values, (adds_up, every_kernel_has_a_phase(cell)))


def _share_interval(
    cell: CellData, phase: str, name: str, chosen: Callable[[pd.Series], pd.Series]
) -> Values:
    """The interval of the share of kernels of the chosen classes; {} where a step has no kernels."""
    kernels = of_phase(cell.recording.kernels, phase)
    chosen_ns, all_ns = (
        cell.recording.by_step(rows, "dur_ns") for rows in (kernels[chosen(kernels["class"])], kernels)
    )
    return interval_values(name, "percent", Sample.of(100 * chosen_ns / all_ns)) if all_ns.all() else {}


def part_a(cell: CellData, _: Sequence[CellData]) -> Answer:
    """The wall time of the forward range beside Python's clock, with and without a profiler."""
    row = cell.phase(FORWARD)
    if row is None:
        return no_answer("a", cell, "the capture has no range `forward`")
    ranges = Sample(float(row.wall_ms), float(row.wall_sd_ms), int(row.steps))
    values: Values = {"range_ms": ranges.mean, "range_sd_ms": ranges.sd, "range_n": ranges.n}
    values |= interval_values("range", "ms", ranges)
    if cell.has_kernels:
        values |= {name: row[name] for name in ("busy_ms", "span_ms", "kernel_ms")}
    recorded, plain = python_sample(cell.result, FORWARD), python_sample(cell.twin, FORWARD)
    if recorded is not None:
        values["python_profiled_ms"] = recorded.mean
    sentence = f"The range `forward` takes {spread(ranges)}"
    if plain is None:
        sentence += "; it was not timed without a profiler."
    else:
        compared = _compared(ranges, plain, values)
        sentence += f", Python in a process without a profiler {spread(plain)}: {compared}"
    if cell.has_kernels:
        sentence += f" The GPU is busy for {row.busy_ms:.2f} ms of it ({100 - row.idle_percent:.0f} %)."
    return Answer("a", cell.label, sentence, values, (times_nest(cell), clocks_agree(cell)))


def _compared(ranges: Sample, plain: Sample, values: Values) -> str:
    """Say what the difference of the two means shows, and add it to `values`.

    There is one process per side, and two equal ones differ, too: by clock rates, by what else ran. So the
    interval is one of the steps within these two processes, and how much the profiler added is not claimed.
    """
    percent = 100 * (ranges.mean - plain.mean) / plain.mean
    low, high = (100 * end / plain.mean for end in difference_ci(ranges, plain))
    values |= {"python_plain_ms": plain.mean, "python_plain_n": plain.n, "overhead_percent": percent}
    has_interval = not math.isnan(low)
    steps = "one step has no interval"
    if has_interval:
        values |= {"steps_low_percent": low, "steps_high_percent": high}
        steps = f"95 % interval of the steps within these two processes {low:+.1f} to {high:+.1f} %"
    # Means that lie near each other by chance show no agreement: the steps must allow of no large difference.
    if abs(percent) <= 100 * AGREE and (not has_interval or max(-low, high) <= 200 * AGREE):
        return f"they agree within {abs(percent):.1f} % ({steps})."
    if has_interval and low <= 0 <= high:
        return f"a difference of {percent:+.0f} %, within the noise of the steps ({steps})."
    word = "longer" if percent > 0 else "shorter"
    return (
        f"under the profiler {abs(percent):.0f} % {word} ({steps}). With one process per side, how much of "
        "it the profiler adds is unknown: two processes differ, too."
    )


def part_d(cell: CellData, siblings: Sequence[CellData]) -> Answer:
    """The share of matrix products in inference, in each phase of training, and over the whole step."""
    step = cell.phase(STEP)
    if cell.phase(OPTIMIZER) is None:
        return no_answer("d", cell, "the capture has no range `optimizer_step`, so it is not of training")
    phases = {name: row for name in PHASES if (row := cell.phase(name)) is not None}
    if step is None or not step.kernels > 0 or FORWARD not in phases:
        return no_answer("d", cell, "no kernels in the step's phases")
    forwards = [sibling.phase(FORWARD) for sibling in siblings if sibling.type == "forward"]
    inference = next((row for row in forwards if row is not None and row.kernels > 0), None)
    values: Values = {f"{name}_matmul_percent": row.matmul_percent for name, row in phases.items()}
    values |= {f"{name}_ms": row.kernel_ms for name, row in phases.items()}
    values |= {"step_matmul_percent": step.matmul_percent, "step_ms": step.kernel_ms}
    step_ns = cell.recording.by_step(cell.recording.kernels, "dur_ns")
    values |= interval_values("step", "ms", Sample.of(step_ns / 1e6))
    values |= _share_interval(cell, STEP, "step_matmul", lambda classes: classes.isin(MATMUL_CLASSES))
    reference, kind = phases[FORWARD], "training's own forward (inference was not recorded)"
    if inference is not None:
        values["inference_matmul_percent"] = inference.matmul_percent
        reference, kind = inference, "inference"
    shares = ", ".join(f"{name} {_share(row)} of {row.kernel_ms:.2f} ms" for name, row in phases.items())
    sentence = (
        f"Matrix products take {reference.matmul_percent:.1f} % of {kind} and {step.matmul_percent:.1f} % "
        f"of a whole training step's kernel time ({shares}). {_kernels_of_other_threads(cell)}"
    )
    return Answer("d", cell.label, sentence.strip(), values, _checks_of_d(cell, step, phases, inference))


def _share(row: pd.Series) -> str:
    return f"{row.matmul_percent:.1f} %" if row.kernels > 0 else "no kernels"


def _kernels_of_other_threads(cell: CellData) -> str:
    """Operations without a phase under nsys' own rule: those attributed across threads."""
    ops, num_steps = cell.recording.ops, len(cell.recording.steps)
    crossed = ops[ops["rule"] == "cross"]
    if crossed.empty:
        return ""
    return (
        f"By the launching thread alone, {plural(round(len(crossed) / num_steps), 'operation')} per step "
        f"({crossed['dur_ns'].sum() / 1e6 / num_steps:.1f} ms) would have no phase."
    )


def _checks_of_d(
    cell: CellData, step: pd.Series, phases: dict[str, pd.Series], inference: pd.Series | None
) -> tuple[Check, ...]:
    summed_ms = sum(row.kernel_ms for row in phases.values())
    passed = abs(summed_ms - step.kernel_ms) <= 1e-3 * step.kernel_ms
    adds_up = check("phases add up to the step", passed, f"{step.kernel_ms:.4f} ms", f"{summed_ms:.4f} ms")
    name, forward = "forward multiplies as often as inference", phases[FORWARD].matmuls
    if inference is None:
        as_often = check(name, None, "a forward capture", "none")
    else:
        as_often = check(name, forward == inference.matmuls, f"{inference.matmuls:g}", f"{forward:g}")
    return (adds_up, every_kernel_has_a_phase(cell), *gemm_counts(cell), as_often)


def part_e(cell: CellData, _: Sequence[CellData]) -> Answer:
    """Softmax beside attention's matrix products, per layer: time, FLOPs and the rates achieved."""
    rows = {row["part"]: row for _, row in cell.tables["attention"].iterrows()}
    if SOFTMAX not in rows:
        return no_answer("e", cell, "the capture has no ranges inside attention")
    if SCORES not in rows or not rows[SCORES]["matmul_us_per_layer"] > 0:
        return no_answer("e", cell, "no GEMM in the range of the scores")
    softmax_us = float(rows[SOFTMAX]["us_per_layer"])
    scores_us = float(rows[SCORES]["matmul_us_per_layer"])
    values: Values = {f"{part}_us": float(row["us_per_layer"]) for part, row in rows.items()}
    kernels = cell.recording.kernels
    softmax_ns = cell.recording.by_step(kernels[kernels["part"] == SOFTMAX], "dur_ns")
    values |= interval_values("softmax", "us", Sample.of(softmax_ns / rows[SOFTMAX]["ranges"] / 1e3))
    values |= {"qk_gemm_us": scores_us, "time_ratio": softmax_us / scores_us}
    sentence = (
        f"Per layer, softmax takes {softmax_us:.1f} µs and the GEMM of QK^T {scores_us:.1f} µs: "
        f"{softmax_us / scores_us:.2f} times as long"
    )
    if FINAL in rows:
        values["av_gemm_us"] = float(rows[FINAL]["matmul_us_per_layer"])
        sentence += f" (weights times values: {values['av_gemm_us']:.1f} µs)"
    sentence += _by_flop(cell, rows, values)
    return Answer("e", cell.label, sentence, values, tuple(_checks_of_e(cell, rows, values)))


def _by_flop(cell: CellData, rows: dict[str, pd.Series], values: Values) -> str:
    if cell.spec is None:
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
    device = cell.result.device if cell.result else {}
    return cell.recording.board or board_of(str(device.get("name", "")), device.get("sm_count"))


def _rate(cell: CellData, board: Board) -> str | None:
    """The rate of the board that the scores' products compete with."""
    if cell.dtype == "tf32":
        return "tf32" if "tf32" in board.tflops else "fp32"
    kernels = cell.recording.kernels
    names = kernels["name"][(kernels["part"] == SCORES) & (kernels["class"] == "gemm")].unique()
    # A kernel's name may not tell: float32 is what the workload computes in unless it is asked for TF32.
    rate = matrix_rate(board, _DTYPES[cell.dtype], " ".join(names))
    return rate or ("fp32" if cell.dtype == "fp32" else None)


def _checks_of_e(cell: CellData, rows: dict[str, pd.Series], values: Values) -> Iterable[Check]:
    for part in (SCORES, FINAL):
        if part in rows:
            matmuls = rows[part]["matmuls_per_layer"]
            yield check(f"one GEMM in every `{part}`", matmuls == 1, "1", f"{matmuls:g}")
    name, spec = "ranges are as many as layers", cell.spec
    if spec is None:
        yield check(name, None, "the model's shape", "unknown")
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


_ANSWERS = {"a": part_a, "b": part_b, "c": part_c, "d": part_d, "e": part_e}
_TYPES = {"a": "forward", "c": "forward", "d": "training", "e": "forward"}  # of the only cells that answer it


def all_answers(data: Sequence[CellData]) -> list[Answer]:
    """Every answer of every cell, part by part."""
    answers: list[Answer] = []
    for cell in data:
        same_model = [sibling for sibling in data if sibling.size_and_context == cell.size_and_context]
        siblings = [sibling for sibling in same_model if sibling is not cell]
        answers += answers_of(cell, siblings, cell_parts(cell))
    return sorted(answers, key=lambda answer: answer.part)


def cell_parts(cell: Cell) -> tuple[str, ...]:
    """The parts that this cell serves: those of its folder, otherwise all of its profile type."""
    return cell.parts or parts_of(cell.type, tuple(PART_TYPES))


def answers_of(cell: CellData, siblings: Sequence[CellData], parts: Iterable[str]) -> list[Answer]:
    """The answers of this cell to `parts`; `siblings` are the other cells of its size and context."""
    if cell.phase(STEP) is None:
        return []
    return [_ANSWERS[part](cell, siblings) for part in parts if _TYPES.get(part, cell.type) == cell.type]


def answers_of_one(cell: CellData) -> list[Answer]:
    """The answers to all questions from one capture alone."""
    return [answer(cell, []) for answer in _ANSWERS.values()] if cell.recording.steps else []
