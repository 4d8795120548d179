"""The energy section: joules by class, op and call, the closure, and what the audit refused."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lab.report.figures import save, stacked_bars
from lab.report.parts import Block, Figure, Points, Section, Table
from lab.rooms.kernels.energy.result import EnergyResult


def energy_section(result: EnergyResult | None, out: Path, home: str = "") -> list[Section]:
    """The section and its audit, or nothing without an energy run.

    `home` is the run's folder as the page links it.
    """
    if result is None:
        return []
    csv = f"{home}tables/energy.csv"
    rows = _rows(result)
    blocks: list[Block] = [Points([*_facts(result), *result.notes])]
    blocks += [_figure(rows, by, out, csv) for by in ("class", "op") if len(rows)]
    blocks.append(Table(rows, "By distinct call", csv, open_rows=12))
    refused = [f"REFUSED: {text}" for text in result.refused] or ["No figure was refused."]
    return [Section("Energy", blocks), Section("Audit", [Points(refused)])]


def _rows(result: EnergyResult) -> pd.DataFrame:
    rows = [
        {
            "kernel": row.kernel,
            "class": row.class_,
            "op": row.op,
            "count": row.count,
            "gross_j": row.gross_j,
            "net_j": row.net_j,
            "power_w": row.watts,
            "run_net_j": row.run_net_j,
            "measured": row.measured,
            "flags": " ".join(row.flags),
        }
        for row in result.rows
    ]
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def _figure(rows: pd.DataFrame, by: str, out: Path, csv: str) -> Figure:
    joules = rows.groupby(by)["run_net_j"].sum().sort_values(ascending=False).head(14)
    drawing = stacked_bars(
        [str(name) for name in joules.index],
        {"computation": joules.to_numpy(dtype=float)},
        axis=f"net J per run, by {by}",
        words={"computation": "net energy"},
    )
    svg = save(drawing, out / "figures", f"energy_by_{by}")
    caption = f"Net energy by {by}. Calls that were not measured take the net power of a measured call."
    return Figure(svg, caption, f"figures/energy_by_{by}.png", csv)


def _facts(result: EnergyResult) -> list[str]:
    facts = [f"Measured by {result.meter}, {result.method}."]
    if (model := result.model) is not None:
        facts.append(
            f"The model itself: {_joules(model.j_per_run)} per run, {_joules(model.j_per_token)} per token; "
            f"by counter {_joules(model.counter_j)}, by integral of power {_joules(model.integral_j)}."
        )
    if (closure := result.closure) is not None:
        facts.append(
            f"Parts against the whole above idle: {closure.sum_net_j:.3f} J of kernels, "
            f"{closure.measured_net_j:.3f} J measured ({closure.net_pct:+.1f} %)."
        )
    return facts


def _joules(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g} J"
