"""A comparison on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from lab.compare.diff.comparable import DIFFERS, axes_words
from lab.compare.diff.comparison import Comparison, Difference, Job, Replayed
from lab.compare.diff.findings import WHOLE
from lab.compare.diff.judge import BELOW, EXACT, FLOOR_SHARE, STEPS_VARY, WITHIN
from lab.compare.diff.split import PARTS
from lab.compare.side import place_text
from lab.compare.units import CAUSE_WORDS, CAUSES
from lab.compare.whole import KERNELS, MEAN, SPAN, total_words
from lab.core.words import plural, printable
from lab.recordings.names import short_name
from lab.report.terminal import rows_table

SUMMED = ("n_a", "n_b", "change_us")
# Columns of tables, by the fields that they have the times of.
IN_US = {"ns": "change_us", "ns_a": "a_us", "ns_b": "b_us", "whole_change_ns": "change_with_inner_us"}
SAID = 0.005  # a change of the whole in one pair, above which it is said that it is not named
NO_REPLAY = "No change of a kernel, or of ops that replaced others, is named."
WORDS = {
    "count": "same kernels, other number of calls",
    "other_kernel": "other kernels for the same ops",
    "op_gone": "ops that only A has",
    "op_new": "ops that only B has",
    "same_kernel_duration": "same kernels, other duration",
}


def text(difference: Difference, top: int = 12, by: Sequence[str] = ()) -> str:
    shown = difference.shown
    lines = [
        f"A {difference.a}",
        f"B {difference.b}",
        *(f"! {problem}" for problem in problems(difference)),
        "",
    ]
    if len(difference.ranks) > 1:
        lines += [*map(job_words, difference.jobs), "", rows_table(by_rank(difference)), ""]
        lines += [f"Shown is {rank_words(shown)}: its own time, outside communication, changed most.", ""]
    lines += of_rank(shown, top)
    for name in by:
        if name in shown.groups:
            lines += ["", *by_group(name, shown, top)]
    if difference.replayed is not None:
        lines += ["", *replayed(difference.replayed, shown, difference.replay_notes)]
    lines += ["", *around(difference, top)]
    return printable("\n".join(lines))


def job_words(job: Job) -> str:
    """The headline of several ranks: the job is as slow as its slowest rank."""
    change_ns = job.b_ns - job.a_ns
    name = f"{job.configuration}: the" if job.configuration else "The"
    times = f"{job.a_ns / 1e6:.3f} -> {job.b_ns / 1e6:.3f} ms per unit ({signed(change_ns, job.a_ns)})"
    line = f"{name} job, which is as slow as its slowest rank: {times}"
    if job.alone is not None:
        return f"{line}; rank {job.alone} alone changed by itself"
    stands_out = [
        f"in {side} {'no rank' if rank is None else f'rank {rank}'}"
        for side, rank in (("A", job.rank_a), ("B", job.rank_b))
    ]
    if job.rank_a == job.rank_b:
        return line if job.rank_a is None else f"{line}; slowest is rank {job.rank_a}"
    unchanged = ", and the job takes as long" if abs(change_ns) <= FLOOR_SHARE * job.a_ns else ""
    return f"{line}; {' and '.join(stands_out)} is slower than the others{unchanged}"


def replayed(results: Sequence[Replayed], shown: Comparison, notes: Sequence[str]) -> list[str]:
    """Tell what the replays say of each finding."""
    if not results:
        return [f"Replay: {NO_REPLAY}"]
    lines = ["Replay of the changed kernels on this GPU"]
    for result in results:
        lines += [f"  {shown.findings[result.finding].text}", f"    -> {result.verdict}: {result.reason}"]
    return [*lines, *(f"  {note}" for note in notes)]


def by_group(name: str, shown: Comparison, top: int) -> list[str]:
    """The rows of --by; what is not shown is summed up, so that the column adds up to the whole."""
    groups = group_records(name, shown)
    is_module = name == "module"
    cut = groups if is_module else groups[:top]
    columns = [name, "on", *SUMMED, *(["change_with_inner_us"] if is_module else [])]
    rows = [{column: group[column] for column in columns} for group in cut]
    for row in rows if is_module else ():
        *above, key = row[name].split(" / ")
        row[name] = "  " * len(above) + key
    hidden = groups[len(cut) :]
    for label, summed in ((plural(len(hidden), "further row"), hidden), ("all", groups)):
        if summed or label == "all":
            sums = {column: sum(group[column] for group in summed) for column in SUMMED}
            rows.append({name: label, "on": "", **sums})
    return [f"Kernel time by {name} (per unit; B against A)", rows_table(rows)]


def group_records(name: str, shown: Comparison) -> list[dict[str, Any]]:
    """The rows of one grouping."""
    columns = [name, "on", "n_a", "n_b", "a_us", "b_us", "change_us"]
    if name == "module":
        columns = [name, "on", "times", *columns[2:], "change_with_inner_us"]
    rows = [{**row, name: row["key"]} for row in records(shown.groups[name])]
    return [{column: row[column] for column in columns} for row in rows]


def records(structs: Sequence[msgspec.Struct]) -> list[dict[str, Any]]:
    """The fields of each, and times in µs beside those in ns."""
    rows: list[dict[str, Any]] = [msgspec.to_builtins(struct) for struct in structs]
    for row in rows:
        times = {IN_US.get(name, name): ns for name, ns in row.items() if name in IN_US or "_ns" in name}
        row |= {name.replace("_ns", "_us"): None if ns is None else ns / 1000 for name, ns in times.items()}
    return rows


def around(difference: Difference, top: int) -> list[str]:
    """What differs beside the change."""
    if not difference.around:
        return ["Nothing that both recordings say of themselves (GPU, versions, ranks) differs."]
    lines = [f"  {differs.name}: {differs.change}  [{differs.source}]" for differs in difference.around]
    hidden = [f"  and {len(lines) - top} more: -o OUT, --json, or --top"] if len(lines) > top else []
    return ["What else differs", *lines[:top], *hidden]


def problems(difference: Difference) -> list[str]:
    torn = [f"GPU work is missing, so figures are bounds: {problem}" for problem in difference.torn]
    torn += [f"ops, phases and modules may be wrong: {problem}" for problem in difference.blurred]
    return [*torn, *difference.missing, *difference.problems]


def by_rank(difference: Difference) -> list[dict[str, Any]]:
    several = any(rank.configuration for rank in difference.ranks)
    return [
        {
            **({"configuration": rank.configuration} if several else {}),
            "rank": rank.rank,
            "a_us": rank.a.get("span_ns", 0.0) / 1000,
            "b_us": rank.b.get("span_ns", 0.0) / 1000,
            "span_us": rank.span_ns / 1000,
            "own_us": rank.own_ns / 1000,
            "exposed_comm_us": rank.exposed_comm_ns / 1000,
            "kernel_sum_us": rank.delta_kernel_ns / 1000,
            "idle_us": rank.idle_ns / 1000,
            "findings": len(rank.findings),
        }
        for rank in difference.ranks
    ]


def of_rank(comparison: Comparison, top: int) -> list[str]:
    lines = [] if comparison.comparable else [f"Not comparable: {comparison.reason}."]
    lines.append(headline(comparison))
    if comparison.unit is None:
        return lines
    lines += ["", rows_table(waterfall(comparison)), ""]
    if comparison.findings:
        lines.append("What changed (per unit; B against A)")
        for finding in comparison.findings[:top]:
            place = f", in {finding.module_path}" if finding.module_path else ""
            lines.append(f"  {finding.text}{place}  [{finding.confidence}]")
        hidden = len(comparison.findings) - top
        lines += [f"  and {plural(hidden, 'further change')}: --top, -o OUT, or --json"] if hidden > 0 else []
    elif comparison.comparable and not comparison.unnamed:
        lines.append(nothing(comparison))
    lines += [f"Not named: {sentence}" for sentence in comparison.unnamed]
    lines += [f"  {note}" for note in (*whole(comparison), *axes_words(comparison.axes), *comparison.notes)]
    return lines + _unnamed_rows(comparison)


def _unnamed_rows(comparison: Comparison) -> list[str]:
    lines = []
    rows = comparison.rows
    if below := sum(row.confidence == BELOW and (row.ns != 0 or row.kind in EXACT) for row in rows):
        floor = f"{100 * comparison.floor_share:.2g} % and {comparison.floor_ns / 1000:.2g} µs"
        lines.append(f"  not named: {plural(below, 'row')} below the floor of {floor}")
    if varying := sum(row.confidence == STEPS_VARY for row in rows):
        lines.append(f"  not named: {plural(varying, 'row')} whose steps vary as much")
    if within := [row for row in rows if row.confidence == WITHIN and row.interval]:
        widths = [
            (row.interval[1] - row.interval[0]) / 2 / max(row.ns_a, 1.0) for row in within if row.interval
        ]
        visible = f"the median of them shows changes beyond {100 * median(widths):.2g} %"
        lines.append(f"  not named: {plural(len(within), 'row')} within the noise of the repeats; {visible}")
    return lines


def whole(comparison: Comparison) -> list[str]:
    """What is known of the totals: their test over processes, or what one pair cannot tell."""
    means = [total for total in comparison.totals if total.statistic == MEAN]
    if any(total.low is not None for total in means):
        return [total_words(total) for total in comparison.totals if total.decides]
    if any(finding.kind in WHOLE for finding in comparison.findings):
        return []
    return [
        f"{total.name} {total.change:+.2%}: of one pair no change of the whole below {FLOOR_SHARE:.0%} is "
        "named; --repeat-a and --repeat-b, three processes per side, prove it"
        for total in means
        if total.name in (KERNELS, SPAN) and total.change and SAID < abs(total.change) <= FLOOR_SHARE
    ][:1]


def nothing(comparison: Comparison) -> str:
    """Say that no change is named, and what that rests on."""
    if not comparison.comparable:
        return "Not comparable, so no change is named; the rows are below."
    if comparison.unnamed:
        return "No change is named."
    edges = any(row.kind in EXACT for row in comparison.rows)
    counts = "counts differ by no more than the edges of a window explain" if edges else "same counts"
    has_calls = any(call.n_a for call in comparison.api) and any(call.n_b for call in comparison.api)
    calls = "same API calls" if has_calls else "API calls were not compared"
    axes = [axis.name for axis in comparison.axes if axis.state == DIFFERS]
    but = f" But other {' and '.join(axes)} were recorded." if axes else ""
    return f"Nothing differs by more than equal runs do: same kernels, {counts}, {calls}.{but}"


def headline(comparison: Comparison) -> str:
    name, unit = rank_words(comparison), "the whole recording"
    if comparison.unit:
        unit = f"per {unit_words(comparison.unit)}"
        unit += f" ({comparison.units_a:g} in A, {comparison.units_b:g} in B)"
    spans, kernels = (
        f"{words} {comparison.a[key] / 1e6:.3f} -> {comparison.b[key] / 1e6:.3f} ms "
        f"({signed(comparison.b[key] - comparison.a[key], comparison.a[key])})"
        for words, key in (("span", "span_ns"), ("kernel time", "kernel_sum_ns"))
    )
    return f"{name[0].upper()}{name[1:]}, {unit}: {spans}, {kernels}."


def rank_words(comparison: Comparison) -> str:
    return place_text((comparison.configuration, comparison.rank))


def unit_words(unit: str | None) -> str:
    """`step`, or `call of` a kernel's short name."""
    name = (unit or "").removeprefix("call of ")
    return f"call of {short_name(name)}" if name != unit else name


def signed(change_ns: float, of_ns: float) -> str:
    share = f", {100 * change_ns / of_ns:+.2f} %" if of_ns else ""
    return f"{change_ns / 1000:+,.1f} µs{share}"


def waterfall(comparison: Comparison) -> list[dict[str, Any]]:
    """Lead from the change of kernel time to the change of the unit's span; the last row is the rows' sum."""
    rows = [
        *((WORDS[part], comparison.parts[part]) for part in PARTS),
        ("less overlap of kernels", -comparison.overlap_ns),
        *((f"idle GPU, {CAUSE_WORDS[cause]}", getattr(comparison, f"{cause}_ns")) for cause in CAUSES),
        ("residual", comparison.residual_ns),
        ("change of the unit's span", comparison.span_ns),
    ]
    return [{"class": name, "change_us": round(ns / 1000, 3) + 0.0} for name, ns in rows]  # no -0
