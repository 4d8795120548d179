"""A comparison on the terminal."""

from __future__ import annotations

from typing import Any

from lab.compare.diff import Comparison, Difference
from lab.compare.judge import BELOW
from lab.compare.split import PARTS
from lab.core.words import plural, printable
from lab.report.terminal import rows_table

WORDS = {
    "count": "same kernels, other number of calls",
    "other_kernel": "other kernels for the same ops",
    "op_gone": "ops that only A has",
    "op_new": "ops that only B has",
    "same_kernel_duration": "same kernels, other duration",
}


def text(difference: Difference, top: int = 12) -> str:
    shown = difference.shown
    lines = [f"A {difference.a}", f"B {difference.b}", *(f"! {one}" for one in problems(difference)), ""]
    if len(difference.ranks) > 1:
        lines += [rows_table(by_rank(difference)), ""]
    lines += of_rank(shown, top)
    return printable("\n".join(lines))


def problems(difference: Difference) -> list[str]:
    torn = [f"GPU work is missing, so figures are bounds: {one}" for one in difference.torn]
    return [*torn, *difference.missing, *difference.problems]


def by_rank(difference: Difference) -> list[dict[str, Any]]:
    return [
        {
            "rank": one.rank,
            "span_us": one.span_ns / 1000,
            "kernel_sum_us": one.delta_kernel_ns / 1000,
            "idle_us": one.idle_ns / 1000,
            "exposed_comm_us": one.exposed_comm_ns / 1000,
            "findings": len(one.findings),
        }
        for one in difference.ranks
    ]


def of_rank(one: Comparison, top: int) -> list[str]:
    if not one.comparable:
        lines = [f"Not comparable: {one.reason}."]
        if one.unit is None:
            return lines
    else:
        lines = []
    lines += [headline(one), "", rows_table(waterfall(one)), ""]
    if one.findings:
        lines.append("What changed (per unit; B against A)")
        lines += [f"  {finding.text}  [{finding.confidence}]" for finding in one.findings[:top]]
    else:
        lines.append("Nothing differs by more than equal runs do: same kernels, same counts, same calls.")
    named = [row for row in one.rows if row.confidence != BELOW]
    lines += [f"  {note}" for note in one.notes]
    below = len(one.rows) - len(named)
    if below:
        lines.append(f"  {plural(below, 'row')} below the floor of 3 % and 1 µs are not named")
    return lines


def headline(one: Comparison) -> str:
    span = one.a["span_ns"]
    kernels = one.a["kernel_sum_ns"]
    return (
        f"Rank {one.rank}, per {one.unit} ({one.units_a:g} in A, {one.units_b:g} in B): "
        f"span {span / 1e6:.3f} ms {signed(one.span_ns, span)}, "
        f"kernel time {kernels / 1e6:.3f} ms {signed(one.delta_kernel_ns, kernels)}."
    )


def signed(change_ns: float, of_ns: float) -> str:
    share = f" ({100 * change_ns / of_ns:+.2f} %)" if of_ns else ""
    return f"{change_ns / 1000:+,.1f} µs{share}"


def waterfall(one: Comparison) -> list[dict[str, Any]]:
    """From the change of kernel time to the change of the unit's span; the last row is the rows' sum."""
    rows = [(WORDS[part], one.parts[part]) for part in PARTS]
    rows += [
        ("less overlap of kernels", -one.overlap_ns),
        ("idle GPU", one.idle_ns),
        ("residual", one.residual_ns),
    ]
    rows.append(("change of the unit's span", one.span_ns))
    return [{"class": name, "change_us": round(ns / 1000, 3)} for name, ns in rows]
