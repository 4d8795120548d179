"""The summary of a capture on one screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lab.core.words import first_few, plural, printable
from lab.recordings.integrity.words import bound, idle_bound, integrity_lines, marked
from lab.recordings.names import short_name
from lab.rooms.nsys.captures.hardware import METRICS, TRAFFIC, UNKNOWN_GPU
from lab.rooms.nsys.captures.phases import Path, Phase
from lab.rooms.nsys.captures.summary import TOP, Share, Summary

WHOLE_CAPTURE = "the whole capture"
TOOLS = {
    "nsys": "Nsight Systems",
    "kineto": "torch.profiler",
    "rocpd": "rocprofv3 (rocpd)",
    "rpd": "rocmProfileData",
    "xplane": "JAX's profiler",
}
RULES = {
    "same": "launched inside a range of its own thread",
    "cross": "launched by a thread without a phase while one other thread was in one",
    "graph": "launched by a CUDA or HIP graph inside a range",
    "ambiguous": "several threads were in a phase: attributed to none",
    "outside": "launched outside of all ranges",
    "unattributed": "its API call is not in the recording",
}
REPLAY_RULES = {
    "node": "by the graph node, made inside a range of the capture",
    "order": "by its place in the capture",
    "name": "by its name alone",
    "none": "nothing at capture is known",
}


def _text(lines: Iterable[str]) -> str:
    """A name from outside may neither command the terminal nor begin a line of its own."""
    return "\n".join(printable(line.replace("\n", "\\n")).rstrip() for line in lines) + "\n"


def summaries_text(per_process: Sequence[Summary]) -> str:
    """One row per process, if there are several; then the summary of each."""
    texts = [_text(_lines(summary)) for summary in per_process]
    if len(texts) == 1:
        return texts[0]
    heads = {"steps": 10, "kernels": 10, "kernel": 10, "busy": 10, "span": 10, "share in GEMMs": 16}
    rows = []
    for summary in per_process:
        step = summary.phases[0]
        times = [f"{ms:.3f}" for ms in (step.kernel_ms, step.busy_ms, step.span_ms)]
        cells = [str(len(summary.steps) or "-"), step.launches, *times, _share(summary.matmul_share)]
        rows.append((f"  {summary.label[:41]}", cells))
    overview = _table(f"{plural(len(per_process), 'process')}: per step, ms", 44, heads, rows)
    return "\n".join([_text(overview), *texts])


def _table(
    title: str, width: int, heads: Mapping[str, int], rows: Iterable[tuple[str, Sequence[str]]]
) -> list[str]:
    """Rows of a name and right-aligned cells below a title and its heads: head -> width of its column."""

    def line(name: str, cells: Iterable[str]) -> str:
        columns = zip(cells, heads.values(), strict=True)
        return f"{name:<{width}}" + "".join(f"{cell:>{column}}" for cell, column in columns)

    return [line(title, heads), *(line(name, cells) for name, cells in rows)]


def _lines(summary: Summary) -> list[str]:
    at_least = _bound(bound(summary.lacks, "gpu"))
    recorded = "recorded " if at_least else ""
    schema = f", schema {summary.schema}" if summary.schema else ""
    tool = f"{TOOLS.get(summary.collector, summary.collector)} {summary.version or '(unknown version)'}"
    per_step = "per step" if summary.steps else "in all"
    no_classes = "no kernels, or no names of kernels, were recorded"
    if summary.has_bare_steps:
        no_classes = "no operation is known to belong to a step"
    lines = [
        summary.source,
        f"recorded by {tool}{schema}; attribution: {summary.attribution}",
        *([f"of {summary.label}"] if summary.num_processes > 1 else []),
        f"measured: {_steps_line(summary)}",
        *integrity_lines(summary.lacks),
        *(["  every share is one of the recorded kernel time"] if recorded else []),
        "",
        *_phase_lines(summary, per_step),
        "",
        *_share_lines(f"kernel classes, {per_step}{at_least}", summary.classes),
        f"  matrix products: {_share(summary.matmul_share)} of {recorded}kernel time"
        if summary.matmul_share is not None
        else f"  {no_classes}: classes and matrix products are unknown",
        "",
        *_share_lines(f"costliest kernels, {per_step}{at_least}", summary.top, short=True),
    ]
    if summary.origins:
        title = f"backward kernels by the forward range they belong to, {per_step}"
        lines += ["", *_share_lines(title + _bound(bound(summary.lacks)), summary.origins)]
    if summary.replayed:
        named = [replace(share, name=share.name or "(no operator known)") for share in summary.replayed[:TOP]]
        title = f"kernels of graph replays by their operator at capture, {per_step}{at_least}"
        lines += ["", *_share_lines(title, named)]
    lines += ["", *_gpu_lines(summary), *_hardware_lines(summary), "", *_rule_lines(summary)]
    lines += [
        f"note: {offer.sentence} ({offer.kernel_ms:.3f} ms, launched by another thread, in no phase)"
        for offer in summary.offers[:8]
    ]
    lines += [f"note: {problem}" for problem in summary.problems]
    return lines + [f"unknown: {sentence}" for sentence in summary.unknown]


def _steps_line(summary: Summary) -> str:
    steps = summary.steps
    if not steps:
        subject = (
            f"{summary.part}, as a whole" if summary.part else f"{WHOLE_CAPTURE} (no range in it is a step)"
        )
        warmup = plural(summary.warmup_left_out, "operation")
        left_out = (
            f"; {warmup} of warm-up left out" if summary.warmup_left_out else ", with any warm-up in it"
        )
        return subject + left_out
    count, ms = summary.left_out
    outside = f"; {plural(count, 'operation')}, {ms:.3f} ms outside of them" if count else ""
    names = steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    part = f"{summary.part}: " if summary.part else ""
    return f"{part}{plural(len(steps), 'step')} ({names}){outside}"


def _phase_lines(summary: Summary, per_step: str) -> list[str]:
    heads = {"kernels": 10, "kernel": 10, "± sd": 8, "busy": 10, "span": 10, "host": 10, "share": 8}
    has_shapes = summary.phases[0].gemm_tflop is not None
    if has_shapes:
        heads |= {"TFLOP": 9, "TFLOP/s": 9}
    rows = []
    for phase in summary.phases:
        cells = [
            phase.launches,
            f"{phase.kernel_ms:.3f}",
            f"{phase.kernel_sd_ms:.3f}" if len(summary.steps) > 1 else "-",
            f"{phase.busy_ms:.3f}",
            f"{phase.span_ms:.3f}",
            f"{phase.host_ms:.3f}" if phase.host_ms else "",
            _share(phase.share),
        ]
        rows.append((_path_name(summary, phase.path)[:43], [*cells, *_rates(phase)] if has_shapes else cells))
    lines = _table(f"{per_step}, ms{_bound(bound(summary.lacks))}", 44, heads, rows)
    step = summary.phases[0]
    if step.gemm_uncounted_ms and step.gemm_ms is not None:
        whole_ms = step.gemm_ms + step.gemm_uncounted_ms
        lines.append(
            f"  TFLOP counts {step.gemm_ms:.3f} of {whole_ms:.3f} ms of matrix products: the others' shapes "
            "were not recorded, or lab has no model of their ops"
        )
    uneven = [phase for phase in summary.phases if len(phase.kernels) > 1]
    for phase in uneven[:3]:
        counts = first_few([*map(str, phase.kernels)], 10)
        lines.append(f"  launches of {'/'.join(phase.path) or 'the step'} differ between steps: {counts}")
    if num_others := len(uneven[3:]):
        lines.append(f"  launches of {plural(num_others, 'more phase')} differ between steps")
    return lines


def _path_name(summary: Summary, path: Path) -> str:
    """The name of a path's last range, indented by its depth."""
    if path:
        return "  " * len(path) + path[-1]
    return "step" if summary.steps else "what was selected" if summary.part else WHOLE_CAPTURE


def _rates(phase: Phase) -> list[str]:
    if not phase.gemm_tflop or not phase.gemm_ms:
        return ["", ""]
    at_least = "≥ " if phase.gemm_uncounted_ms else ""
    return [f"{at_least}{phase.gemm_tflop:.3g}", f"{phase.gemm_tflop / phase.gemm_ms * 1000:.1f}"]


def _bound(word: str) -> str:
    """`, at least` after a heading."""
    return f", {word}" if word else ""


def _share_lines(title: str, shares: Iterable[Share], *, short: bool = False) -> list[str]:
    rows = []
    for share in shares:
        name = shortened(short_name(share.name) if short else share.name)
        count = f"{share.per_step:g}" if share.per_step == int(share.per_step) else f"{share.per_step:.2f}"
        ms = share.kernel_ms * share.per_step / share.kernels
        rows.append((f"  {name}", [count, f"{ms:.3f}", f"{share.share:.1%}"]))
    return _table(title, 70, {"kernels": 10, "ms": 12, "share": 8}, rows)


def _share(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def shortened(name: str, width: int = 66) -> str:
    """The name without its middle, because long names differ at their ends."""
    return name if len(name) <= width else f"{name[: width - 30]}...{name[-27:]}"


def _gpu_lines(summary: Summary) -> list[str]:
    busy, idle = marked(bound(summary.lacks, "gpu")), idle_bound(summary.lacks)
    lines = []
    for gpu in summary.gpus:
        whole_ms = gpu.busy_ms + gpu.idle_ms
        share = f"{gpu.idle_ms / whole_ms:.1%}" if whole_ms else "0 %"
        warmup = f" after {plural(gpu.warmup, 'operation')} of warm-up" if gpu.warmup else ""
        lines.append(
            f"GPU {gpu.device} ({gpu.name}){warmup}: busy {busy}{gpu.busy_ms:.3f} ms, "
            f"idle {idle}{gpu.idle_ms:.3f} ms between operations ({share}), "
            f"longest gap {idle}{gpu.longest_gap_ms:.3f} ms"
        )
    return lines


def _hardware_lines(summary: Summary) -> list[str]:
    """GPU metrics and unified memory; of another tool than nsys, which has neither, no line."""
    if summary.collector != "nsys":
        return []
    metrics, memory = summary.gpu_metrics, summary.unified_memory
    lines = []
    if metrics is not None:
        heads = {**dict.fromkeys(METRICS.values(), 15), "samples": 10}
        rows = [(_path_name(summary, row["path"])[:43], _metric_cells(row)) for row in metrics["ranges"]]
        rows += [
            (f"  {shortened(short_name(row['name']), 41)}", _metric_cells(row)) for row in metrics["kernels"]
        ]
        lines += ["", *_table("GPU metrics, mean % of the peak", 44, heads, rows)]
        period = f"{metrics['period_us']:g} us"
        lines.append(f"  a sample per {period} and GPU; - : no work that spans a sample's neighbours")
    elif UNKNOWN_GPU not in summary.unknown:
        lines.append("GPU metrics: not recorded (nsys profile --gpu-metrics-devices)")
    if memory is None:
        reason = "not recorded (unified-memory migrations, page faults)"
        return [*lines, f"unified memory: {'not divided by part' if summary.part else reason}"]
    rows = [(_path_name(summary, row["path"])[:43], _traffic_cells(row)) for row in memory["ranges"]]
    rows.append(("  in all", _traffic_cells(memory["in_all"])))
    title = f"unified memory, {'per step' if summary.steps else 'in all'}"
    return [*lines, "", *_table(title, 44, dict.fromkeys(TRAFFIC.values(), 13), rows)]


def _metric_cells(row: Mapping[str, Any]) -> list[str]:
    means = [row[f"{metric}_percent"] for metric in METRICS]
    return [*("-" if mean is None else f"{mean:.1f}" for mean in means), str(row["samples"])]


def _traffic_cells(row: Mapping[str, Any]) -> list[str]:
    return ["not recorded" if row[name] is None else f"{row[name]:.6g}" for name in TRAFFIC]


def _rule_lines(summary: Summary) -> list[str]:
    """How operations found their range, and those of graph replays their capture."""
    total = sum(count for count, _ in summary.rules.values())
    used = {rule: figures for rule, figures in summary.rules.items() if figures[0] or total == 0}
    lines = _rules_table(f"how operations found their range ({summary.part or 'whole capture'})", RULES, used)
    if summary.replay_rules:
        title = "how operations of graph replays found their capture"
        lines += ["", *_rules_table(title, REPLAY_RULES, summary.replay_rules)]
    return lines


def _rules_table(
    title: str, meanings: Mapping[str, str], rules: Mapping[str, tuple[int, float]]
) -> list[str]:
    rows = [
        (f"  {rule:<14}{meanings[rule]}", [str(count), f"{ms:.3f}"]) for rule, (count, ms) in rules.items()
    ]
    return _table(title, 88, {"ops": 8, "ms": 12}, rows)
