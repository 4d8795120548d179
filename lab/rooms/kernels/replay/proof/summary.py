"""A replay in sentences: the verdict, what is missing, and the text for the terminal."""

from __future__ import annotations

import math

from lab.core.words import plural
from lab.report.parts import Status
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.replay.proof.evaluate import OFTEN, total_closure
from lab.rooms.kernels.replay.proof.rows import (
    GEOMETRY,
    OTHER,
    VARIED,
    Coverage,
    Result,
    Row,
)

NOUNS = {"kernel": "compute launch", "memcpy": "copy", "memset": "fill", "cpu_op": "CPU op"}
CPU_ONLY = "an op replay on a CPU, not a kernel replay: which kernels the ops launch was not looked at"
# Which mode answers which question; another mode's time is off by the cache that it does not share.
QUESTIONS = {
    "in-order": "what a kernel takes in the model (the caches hold what the ops before it left)",
    "hot": "the fastest a kernel can be (its inputs are in cache); not its time in the model",
    "cold": "a kernel whose inputs come from memory; not its time in the model",
}


def verdict_sentences(result: Result) -> list[str]:
    """The sentences that answer the question, numbers first."""
    lines = [CPU_ONLY] if result.device == "cpu" else _gpu_sentences(result)
    return [*lines, *(_coverage_sentence(kind, one) for kind, one in result.coverage.items())]


def _gpu_sentences(result: Result) -> list[str]:
    lines, error = [], result.error
    if kernel := result.coverage.get("kernel"):
        of_what = "computing time" if "collective" in result.coverage else "kernel time"
        lines.append(
            f"{kernel.percent('same', 'time_us'):.2f} % of {of_what} ({kernel.same_launches:,} of "
            f"{plural(kernel.launches, 'launch')}) replays as the same kernel"
        )
    if error.get("median_abs_pct") is not None:
        distinct = plural(int(error["distinct"] or 0), "distinct launch")
        lines.append(
            f"{result.mode} replay is off by {error['median_abs_pct']:.2f} % (median |error| of {distinct}; "
            f"{error['weighted_abs_pct']:.2f} % weighted by time)"
        )
        if error.get("often"):
            lines.append(
                f"launches recorded at least {OFTEN} times ({error['often']:.0f} of them) are off by "
                f"{error['median_abs_pct_often']:.2f} %"
            )
    if not math.isnan(total_closure(result)):
        share = 100 + total_closure(result)
        lines.append(f"closure: replayed kernel times sum to {share:.2f} % of the recorded ones")
    return lines


def _coverage_sentence(kind: str, cover: Coverage) -> str:
    if kind == "collective":
        return (
            f"{plural(cover.launches, 'collective')} ({cover.time_us / 1e3:,.3f} ms, waiting for other ranks "
            "included) not replayed: a replay is one process"
        )
    launches, time = cover.percent("rebuilt", "launches"), cover.percent("rebuilt", "time_us")
    return (
        f"{cover.rebuilt_launches:,} of {plural(cover.launches, NOUNS.get(kind, kind))} with a rebuilt op "
        f"({launches:.1f} %, {time:.1f} % of the time)"
    )


def status(result: Result) -> Status:
    if not any(one.rebuilt_launches for one in result.coverage.values()):
        return "fail"
    tested = [met for met in result.bars.values() if met is not None]
    return "ok" if tested and all(tested) and not result.uncovered else "warn"


def missing_sentences(result: Result) -> list[str]:
    """What was asked for and is missing: launches that were not replayed at all."""
    missing = [entry for entry in result.uncovered if entry["reason"] not in (GEOMETRY, OTHER, VARIED)]
    return [
        f"{entry['op']}: {plural(entry['launches'], 'launch')} ({entry['time_us']:.1f} us) not replayed: "
        f"{entry['reason']}"
        for entry in missing
    ]


def terminal(result: Result, plan: ReplayPlan) -> str:
    """Coverage, proof, errors, what is not covered, and the worst rows."""
    lines = [*_head(result, plan), *(f"  {line}" for line in verdict_sentences(result))]
    for name, met in result.bars.items():
        if met is not None:
            lines.append(f"  bar {name.replace('_', ' ')}: {'met' if met else 'NOT met'}")
    uncovered = [
        f"  {entry['time_us']:10.1f} us {entry['launches']:6d} x {entry['op']}: {entry['reason']}"
        for entry in result.uncovered[:12]
    ]
    worst = sorted(
        (row for row in result.rows if row.err_pct is not None and result.device != "cpu"),
        key=lambda row: -abs(row.err_pct or 0) * row.time_share,
    )
    lines += _titled("not proven", uncovered)
    lines += _titled("largest errors, weighted by time", [_error_line(row) for row in worst[:8]])
    return "\n".join([*lines, *(f"note: {note}" for note in result.notes)])


def _head(result: Result, plan: ReplayPlan) -> list[str]:
    gpu = result.device_name or result.device
    recorded = "" if result.same_gpu else f"; recorded on {result.trace_device_name or 'a CPU'}"
    sources = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in sorted(result.sources.items()))
    passes = plural(result.repeats, "pass")
    on_cpu = result.device == "cpu"
    asked = [] if on_cpu else [f"{result.mode} answers: {QUESTIONS.get(result.mode, 'unknown')}"]
    return [
        f"{'op replay' if on_cpu else 'replay'}, mode {result.mode}, {passes}, on {gpu}{recorded}",
        *asked,
        f"{plural(len(plan.calls), 'call')}, {len(plan.signatures):,} distinct; arguments from {sources}",
        "",
    ]


def _error_line(row: Row) -> str:
    time = f"{row.trace_median_us:9.2f} us x {row.count:<5d}"
    return f"  {row.err_pct:+7.1f} %  {time} {row.op:28} {row.kernel[:60]}"


def _titled(title: str, lines: list[str]) -> list[str]:
    return ["", title, *lines] if lines else []
