"""Questions a to d (e is in `attention`), which of them a cell can answer, and its answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from lab.core.words import plural
from lab.recordings.phase_names import FORWARD
from lab.rooms.nsys.analyze import MATMUL_CLASSES
from lab.rooms.nsys.answers.answer import (
    AGREE,
    OPEN,
    Answer,
    CellData,
    Check,
    check,
    clocks_agree,
    every_kernel_has_a_phase,
    gemm_counts,
    interval_values,
    kernel_ns_by_step,
    launches_repeat,
    no_answer,
    part_e,
    python_sample,
    spread,
    times_nest,
)
from lab.rooms.nsys.config import PART_TYPES, Cell, parts_of
from lab.rooms.nsys.recording import PHASES, STEP
from lab.stats.means import Sample, difference_ci, mean_ci

NOTABLE_PERCENT = 1.0


def part_b(cell: CellData, _: Sequence[CellData]) -> Answer:
    """The costliest kernel of the forward pass (and of forward plus backward), with its launches per pass."""
    assert cell.tables is not None
    kernels = cell.tables.kernels
    forward = kernels[kernels["phase"] == "forward"]
    if forward.empty:
        return no_answer("b", cell, "no kernel in the range `forward`")
    top = forward.iloc[0]
    values: dict[str, float | str] = {
        "kernel": top.kernel,
        "launches": top.launches,
        "ms": top.ms,
        "percent": top.percent,
        "name": top["name"],
    }
    spent_ns = kernel_ns_by_step(cell, [FORWARD], lambda ops: ops["name"] == top["name"])
    values |= interval_values("kernel", "ms", spent_ns / 1e6)
    sentence = f"In forward, {_kernel_sentence(top)}."
    passes = kernels[kernels["phase"].isin(("forward", "backward"))]
    if (passes["phase"] == "backward").any():
        sums = {
            "kernel": "first",
            "launches": "sum",
            "ms": "sum",
            "class": "first",
            "same_in_all_steps": "all",
        }
        summed = passes.groupby("name", sort=False).agg(sums).sort_values("ms", ascending=False)
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
    assert cell.tables is not None
    classes = cell.tables.classes
    forward = classes[classes["phase"] == "forward"]
    if forward.empty:
        return no_answer("c", cell, "no kernel in the range `forward`")
    not_matmul = forward[~forward["class"].isin(MATMUL_CLASSES)]
    notable = not_matmul[not_matmul["percent"] >= NOTABLE_PERCENT]
    share = float(not_matmul["percent"].sum())
    values: dict[str, float | str] = {
        f"{row['class']}_percent": row.percent for _, row in not_matmul.iterrows()
    }
    values["not_matmul_percent"] = share
    forward_ns = kernel_ns_by_step(cell, [FORWARD], lambda ops: ops["class"] != "")
    not_matmul_ns = kernel_ns_by_step(cell, [FORWARD], lambda ops: ~ops["class"].isin(MATMUL_CLASSES))
    if forward_ns.all():
        values |= interval_values("not_matmul", "percent", 100 * not_matmul_ns / forward_ns)
    listed = ", ".join(_class_share(row) for _, row in notable.iterrows()) or "no class of them reaches 1 %"
    sentence = f"{share:.1f} % of forward's kernel time is not matrix products: {listed}."
    total = float(forward["percent"].sum())
    adds_up = check("shares of all classes add up", abs(total - 100) < 1e-6, "100 %", f"{total:.6f} %")
    return Answer("c", cell.label, sentence, values, (adds_up, every_kernel_has_a_phase(cell)))


def _class_share(row: pd.Series) -> str:
    launches = "launch" if row.launches == 1 else "launches"
    return f"{row['class']} {row.percent:.1f} % ({row.launches:g} {launches})"


def part_a(cell: CellData, _: Sequence[CellData]) -> Answer:
    """The wall time of the forward range beside Python's clock, with and without a profiler."""
    row = cell.phase("forward")
    if row is None:
        return no_answer("a", cell, "the capture has no range `forward`")
    ranges = Sample(float(row.wall_ms), float(row.wall_sd_ms), int(row.steps))
    values: dict[str, float | str] = {"range_ms": ranges.mean, "range_sd_ms": ranges.sd, "range_n": ranges.n}
    low, high = mean_ci(ranges)
    values |= {} if math.isnan(low) else {"range_low_ms": low, "range_high_ms": high}
    if cell.has_kernels:
        values |= {"busy_ms": row.busy_ms, "span_ms": row.span_ms, "kernel_ms": row.kernel_ms}
    recorded = python_sample(cell.files.result, "forward")
    plain = python_sample(cell.files.twin, "forward")
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
    return Answer("a", cell.label, sentence, values, (*times_nest(cell), clocks_agree(cell)))


def _compared(ranges: Sample, plain: Sample, values: dict[str, float | str]) -> str:
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
    if cell.phase("optimizer_step") is None:
        return no_answer("d", cell, "the capture has no range `optimizer_step`, so it is not of training")
    phases = {name: row for name in PHASES if (row := cell.phase(name)) is not None}
    if step is None or not step.kernels > 0 or "forward" not in phases:
        return no_answer("d", cell, "no kernels in the step's phases")
    forwards = [sibling.phase("forward") for sibling in siblings if sibling.files.cell.type == "forward"]
    inference = next((row for row in forwards if row is not None and row.kernels > 0), None)
    values: dict[str, float | str] = {
        f"{name}_matmul_percent": row.matmul_percent for name, row in phases.items()
    }
    values |= {f"{name}_ms": row.kernel_ms for name, row in phases.items()}
    values |= {"step_matmul_percent": step.matmul_percent, "step_ms": step.kernel_ms}
    step_ns = kernel_ns_by_step(cell, [], lambda ops: ops["class"] != "")
    products_ns = kernel_ns_by_step(cell, [], lambda ops: ops["class"].isin(MATMUL_CLASSES))
    values |= interval_values("step", "ms", step_ns / 1e6)
    if step_ns.all():
        values |= interval_values("step_matmul", "percent", 100 * products_ns / step_ns)
    reference, kind = phases["forward"], "training's own forward (inference was not recorded)"
    if inference is not None:
        values["inference_matmul_percent"] = inference.matmul_percent
        reference, kind = inference, "inference"
    shares = ", ".join(f"{name} {_share(row)} of {row.kernel_ms:.2f} ms" for name, row in phases.items())
    sentence = (
        f"Matrix products take {reference.matmul_percent:.1f} % of {kind} and {step.matmul_percent:.1f} % "
        f"of a whole training step's kernel time ({shares}). {_kernels_of_other_threads(cell)}"
    )
    return Answer("d", cell.label, sentence.strip(), values, _checks(cell, step, phases, inference))


def _share(row: pd.Series) -> str:
    return f"{row.matmul_percent:.1f} %" if row.kernels > 0 else "no kernels"


def _kernels_of_other_threads(cell: CellData) -> str:
    """Operations without a phase under nsys' own rule: those attributed across threads."""
    assert cell.recording is not None
    crossed = cell.recording.ops[cell.recording.ops["rule"] == "cross"]
    ms = (crossed["end_ns"] - crossed["start_ns"]).sum() / 1e6
    num_steps = len(cell.recording.steps)
    if crossed.empty:
        return ""
    return (
        f"By the launching thread alone, {plural(round(len(crossed) / num_steps), 'operation')} per step "
        f"({ms / num_steps:.1f} ms) would have no phase."
    )


def _checks(
    cell: CellData, step: pd.Series, phases: dict[str, pd.Series], inference: pd.Series | None
) -> tuple[Check, ...]:
    summed_ms = sum(row.kernel_ms for row in phases.values())
    passed = abs(summed_ms - step.kernel_ms) <= 1e-3 * step.kernel_ms
    adds_up = check("phases add up to the step", passed, f"{step.kernel_ms:.4f} ms", f"{summed_ms:.4f} ms")
    name, forward = "forward multiplies as often as inference", phases["forward"].matmuls
    if inference is None:
        as_often = Check(name, OPEN, "a forward capture", "none")
    else:
        as_often = check(name, forward == inference.matmuls, f"{inference.matmuls:g}", f"{forward:g}")
    return (adds_up, every_kernel_has_a_phase(cell), *gemm_counts(cell), as_often)


_ANSWERS = {"a": part_a, "b": part_b, "c": part_c, "d": part_d, "e": part_e}
_TYPES = {"a": "forward", "c": "forward", "d": "training", "e": "forward"}  # of the only cells that answer it


def all_answers(data: Sequence[CellData]) -> list[Answer]:
    """Every answer of every cell, part by part."""
    answers: list[Answer] = []
    for cell in data:
        same_model = [sibling for sibling in data if sibling.size_and_context == cell.size_and_context]
        siblings = [sibling for sibling in same_model if sibling is not cell]
        answers += answers_of(cell, siblings, cell_parts(cell.files.cell))
    return sorted(answers, key=lambda answer: answer.part)


def cell_parts(cell: Cell) -> tuple[str, ...]:
    """The parts that this cell serves: those of its folder, otherwise all of its profile type."""
    return cell.parts or parts_of(cell.type, tuple(PART_TYPES))


def answers_of(cell: CellData, siblings: Sequence[CellData], parts: Iterable[str]) -> list[Answer]:
    """The answers of this cell to `parts`; `siblings` are the other cells of its size and context."""
    if cell.recording is None or cell.phase(STEP) is None:
        return []
    kind = cell.files.cell.type
    return [_ANSWERS[part](cell, siblings) for part in parts if _TYPES.get(part, kind) == kind]


def answers_of_one(cell: CellData) -> list[Answer]:
    """The answers to all questions from one capture alone."""
    if cell.recording is None or not cell.recording.steps:
        return []
    return [answer(cell, []) for answer in _ANSWERS.values()]
