"""A comparison on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from lab.compare.diff.comparison import Comparison, Difference, Replayed
from lab.compare.diff.judge import BELOW, EXACT, WITHIN
from lab.compare.diff.modules.groups import Group
from lab.compare.diff.split import PARTS
from lab.compare.idle import CAUSE_WORDS, CAUSES
from lab.core.words import plural, printable
from lab.recordings.names import short_name
from lab.report.terminal import rows_table

WORDS = {
    "count": "same kernels, other number of calls",
    "other_kernel": "other kernels for the same ops",
    "op_gone": "ops that only A has",
    "op_new": "ops that only B has",
    "same_kernel_duration": "same kernels, other duration",
}


def text(difference: Difference, top: int = 12, by: Sequence[str] = ()) -> str:
    shown = difference.shown
    lines = [f"A {difference.a}", f"B {difference.b}", *(f"! {one}" for one in problems(difference)), ""]
    if len(difference.ranks) > 1:
        lines += [rows_table(by_rank(difference)), ""]
        lines += [f"Shown is {of_whom(shown)}: its own time, outside communication, changed most.", ""]
    lines += of_rank(shown, top)
    for name in by:
        if name in shown.groups:
            lines += ["", *by_group(name, shown, top)]
    if difference.replayed is not None:
        lines += ["", *replayed(difference.replayed, shown, difference.replay_notes)]
    lines += ["", *around(difference, top)]
    return printable("\n".join(lines))


def replayed(found: Sequence[Replayed], shown: Comparison, notes: Sequence[str]) -> list[str]:
    """What the replays say of each finding."""
    if not found:
        return ["Replay: no change of a kernel, or of ops that replaced others, is named."]
    lines = ["Replay of the changed kernels on this GPU"]
    for one in found:
        lines += [f"  {shown.findings[one.finding].text}", f"    -> {one.verdict}: {one.reason}"]
    return [*lines, *(f"  {note}" for note in notes)]


def by_group(name: str, shown: Comparison, top: int) -> list[str]:
    """The rows of --by; what is not shown is summed up, so that the column adds up to the whole."""
    groups = shown.groups[name]
    cut = groups if name == "module" else groups[:top]
    rows: list[dict[str, object]] = [
        {name: _indented(one.key) if name == "module" else one.key, **_group(one)} for one in cut
    ]
    if rest := groups[len(cut) :]:
        words: dict[str, object] = {
            name: plural(len(rest), "further row"),
            "on": "",
            "n_a": sum(one.n_a for one in rest),
        }
        words |= {"n_b": sum(one.n_b for one in rest), "change_us": sum(one.change_ns for one in rest) / 1000}
        rows.append(words)
    whole = {
        name: "all",
        "on": "",
        "n_a": sum(one.n_a for one in groups),
        "n_b": sum(one.n_b for one in groups),
    }
    rows.append({**whole, "change_us": sum(one.change_ns for one in groups) / 1000})
    return [f"Kernel time by {name} (per unit; B against A)", rows_table(rows)]


def _group(one: Group) -> dict[str, object]:
    found: dict[str, object] = {
        "on": one.on,
        "n_a": one.n_a,
        "n_b": one.n_b,
        "change_us": one.change_ns / 1000,
    }
    if one.whole_change_ns is not None:
        found["change_with_inner_us"] = one.whole_change_ns / 1000
    return found


def _indented(path: str) -> str:
    parts = path.split(" / ")
    return "  " * (len(parts) - 1) + parts[-1]


def around(difference: Difference, top: int) -> list[str]:
    """What differs beside the change."""
    if not difference.around:
        return ["Nothing that both recordings say of themselves (GPU, versions, ranks) differs."]
    cut = difference.around[:top]
    lines = [f"  {one.what}: {one.a or 'not said'} -> {one.b or 'not said'}  [{one.source}]" for one in cut]
    more = len(difference.around) - len(cut)
    return ["What else differs", *lines, *([f"  and {more} more: -o OUT, --json, or --top"] if more else [])]


def problems(difference: Difference) -> list[str]:
    torn = [f"GPU work is missing, so figures are bounds: {one}" for one in difference.torn]
    torn += [f"ops, phases and modules may be wrong: {one}" for one in difference.blurred]
    return [*torn, *difference.missing, *difference.problems]


def by_rank(difference: Difference) -> list[dict[str, Any]]:
    several = any(one.configuration for one in difference.ranks)
    return [
        {
            **({"configuration": one.configuration} if several else {}),
            "rank": one.rank,
            "span_us": one.span_ns / 1000,
            "own_us": one.own_ns / 1000,
            "exposed_comm_us": one.exposed_comm_ns / 1000,
            "kernel_sum_us": one.delta_kernel_ns / 1000,
            "idle_us": one.idle_ns / 1000,
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
        lines += [
            f"  {finding.text}{f', in {finding.where}' if finding.where else ''}  [{finding.confidence}]"
            for finding in one.findings[:top]
        ]
        if more := len(one.findings) - top:
            lines += [f"  and {plural(more, 'further change')}: --top, -o OUT, or --json"] if more > 0 else []
    elif one.comparable and not one.unnamed:
        lines.append(nothing(one))
    lines += [f"Not named: {text}" for text in one.unnamed]
    lines += [f"  {note}" for note in one.notes]
    if below := sum(row.confidence == BELOW and (row.ns != 0 or row.kind in EXACT) for row in one.rows):
        floor = f"{100 * one.floor_share:.2g} % and {one.floor_ns / 1000:.2g} µs"
        lines.append(f"  not named: {plural(below, 'row')} below the floor of {floor}")
    if within := [row for row in one.rows if row.confidence == WITHIN and row.interval]:
        widths = [
            (row.interval[1] - row.interval[0]) / 2 / max(row.ns_a, 1.0) for row in within if row.interval
        ]
        seen = f"the median of them shows changes beyond {100 * median(widths):.2g} %"
        lines.append(f"  not named: {plural(len(within), 'row')} within the noise of the repeats; {seen}")
    return lines


def nothing(one: Comparison) -> str:
    """That nothing is named, and what that rests on."""
    edges = any(row.kind in EXACT for row in one.rows)
    counts = "counts differ by no more than the edges of a window explain" if edges else "same counts"
    has_calls = any(call.n_a for call in one.api) and any(call.n_b for call in one.api)
    calls = "same API calls" if has_calls else "API calls were not compared"
    return f"Nothing differs by more than equal runs do: same kernels, {counts}, {calls}."


def headline(one: Comparison) -> str:
    span = one.a["span_ns"]
    kernels = one.a["kernel_sum_ns"]
    who = of_whom(one)
    counts = f"{one.units_a:g} in A, {one.units_b:g} in B"
    return (
        f"{who[0].upper()}{who[1:]}, per {unit_words(one.unit)} ({counts}): "
        f"span {span / 1e6:.3f} ms {signed(one.span_ns, span)}, "
        f"kernel time {kernels / 1e6:.3f} ms {signed(one.delta_kernel_ns, kernels)}."
    )


def of_whom(one: Comparison) -> str:
    return f"{one.configuration}, rank {one.rank}" if one.configuration else f"rank {one.rank}"


def unit_words(unit: str | None) -> str:
    """`step`, or `call of` a kernel's short name."""
    name = (unit or "").removeprefix("call of ")
    return f"call of {short_name(name)}" if name != unit else name


def signed(change_ns: float, of_ns: float) -> str:
    share = f" ({100 * change_ns / of_ns:+.2f} %)" if of_ns else ""
    return f"{change_ns / 1000:+,.1f} µs{share}"


def waterfall(one: Comparison) -> list[dict[str, Any]]:
    """From the change of kernel time to the change of the unit's span; the last row is the rows' sum."""
    rows = [(WORDS[part], one.parts[part]) for part in PARTS]
    rows += [
        ("less overlap of kernels", -one.overlap_ns),
        *((f"idle GPU, {CAUSE_WORDS[cause]}", getattr(one, f"{cause}_ns")) for cause in CAUSES),
        ("residual", one.residual_ns),
    ]
    rows.append(("change of the unit's span", one.span_ns))
    return [{"class": name, "change_us": round(ns / 1000, 3) + 0.0} for name, ns in rows]  # no -0
