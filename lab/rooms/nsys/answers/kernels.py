"""Questions b and c: which kernels make up the forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lab.core.words import plural
from lab.recordings.phase_names import FORWARD
from lab.rooms.nsys.analyze import MATMUL_CLASSES
from lab.rooms.nsys.answers.answer import (
    Answer,
    CellData,
    check,
    every_kernel_has_a_phase,
    gemm_counts,
    interval_values,
    kernel_ns_by_step,
    launches_repeat,
    no_answer,
)

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


def brief(name: str, limit: int = 56) -> str:
    """A kernel's name shortened for a sentence; the table has the full name."""
    return name if len(name) <= limit else f"{name[: limit - 12]}…{name[-11:]}"


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
