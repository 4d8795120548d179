"""The summary of a capture on one screen."""

from __future__ import annotations

from dataclasses import replace

from lab.core.words import plural
from lab.recordings.names import short_name
from lab.rooms.nsys.captures.phases import Phase
from lab.rooms.nsys.captures.summary import TOP, Share, Summary

_WHOLE_CAPTURE = "the whole capture"


def summary_text(summary: Summary) -> str:
    return "\n".join(line.rstrip() for line in _lines(summary)) + "\n"


def _lines(one: Summary) -> list[str]:
    tool = {"nsys": "Nsight Systems", "kineto": "torch.profiler"}[one.collector]
    schema = f", schema {one.schema}" if one.schema else ""
    lines = [
        f"{one.source}",
        f"recorded by {tool} {one.version or '(unknown version)'}{schema}; attribution: {one.attribution}",
        f"measured: {_steps_line(one)}",
        "",
        *_phase_lines(one),
        "",
        *_share_lines("kernel classes", one.classes),
        f"  matrix products: {one.matmul_share:.1%} of kernel time",
        "",
        *_share_lines("costliest kernels", one.top, short=True),
    ]
    if one.origins:
        lines += ["", *_share_lines("backward kernels by the forward range they belong to", one.origins)]
    if one.replayed:
        named = tuple(
            replace(share, name=share.name or "(no operator known)") for share in one.replayed[:TOP]
        )
        lines += ["", *_share_lines("kernels of graph replays by their operator at capture", named)]
    lines += ["", *_gpu_lines(one), "", *_rule_lines(one), *_replay_lines(one)]
    return lines + [f"note: {problem}" for problem in one.problems]


def _steps_line(one: Summary) -> str:
    if not one.steps:
        return f"{_WHOLE_CAPTURE} (no range in it is a step)"
    count, ms = one.left_out
    left = f"; {plural(count, 'operation')}, {ms:.3f} ms outside of them" if count else ""
    which = one.steps[0] if len(one.steps) == 1 else f"{one.steps[0]} to {one.steps[-1]}"
    return f"{plural(len(one.steps), 'step')} ({which}){left}"


def _phase_lines(one: Summary) -> list[str]:
    columns = f"{'kernels':>10}{'kernel':>10}{'± sd':>8}{'busy':>10}{'span':>10}{'host':>10}{'share':>8}"
    head = f"{'per step, ms':<44}{columns}"
    shapes = one.phases[0].gemm_tflop is not None
    lines = [head + (f"{'TFLOP':>9}{'TFLOP/s':>9}" if shapes else "")]
    for phase in one.phases:
        name = "  " * len(phase.path) + (
            phase.path[-1] if phase.path else ("step" if one.steps else _WHOLE_CAPTURE)
        )
        times = (
            f"{phase.kernel_ms:>10.3f}{phase.kernel_sd_ms:>8.3f}{phase.busy_ms:>10.3f}{phase.span_ms:>10.3f}"
        )
        host = f"{phase.host_ms:>10.3f}" if phase.host_ms else f"{'':>10}"
        rate = _rate(phase) if shapes else ""
        lines.append(f"{name[:43]:<44}{_launches(phase.kernels):>10}{times}{host}{phase.share:>8.1%}{rate}")
    uneven = [phase for phase in one.phases if len(phase.kernels) > 1]
    for phase in uneven[:3]:
        counts = ", ".join(map(str, phase.kernels[:10]))
        lines.append(f"  launches of {'/'.join(phase.path) or 'the step'} differ between steps: {counts}")
    return lines


def _rate(phase: Phase) -> str:
    if not phase.gemm_tflop or not phase.gemm_ms:
        return ""
    return f"{phase.gemm_tflop:>9.3g}{phase.gemm_tflop / phase.gemm_ms * 1000:>9.1f}"


def _launches(counts: tuple[int, ...]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"


def _share_lines(title: str, shares: tuple[Share, ...], *, short: bool = False) -> list[str]:
    lines = [f"{title + ', per step':<70}{'kernels':>10}{'ms':>12}{'share':>8}"]
    for one in shares:
        name = _shortened(short_name(one.name) if short else one.name)
        count = f"{one.per_step:g}" if one.per_step == int(one.per_step) else f"{one.per_step:.2f}"
        ms = one.kernel_ms * one.per_step / one.kernels
        lines.append(f"  {name:<68}{count:>10}{ms:>12.3f}{one.share:>8.1%}")
    return lines


def _shortened(name: str, width: int = 66) -> str:
    """The name without its middle, because long names differ at their ends."""
    return name if len(name) <= width else f"{name[: width - 30]}...{name[-27:]}"


def _gpu_lines(one: Summary) -> list[str]:
    return [
        f"GPU {gpu.device} ({gpu.name}): busy {gpu.busy_ms:.3f} ms, "
        f"idle {gpu.idle_ms:.3f} ms between operations "
        f"({_percent(gpu.idle_ms, gpu.busy_ms + gpu.idle_ms)}), longest gap {gpu.longest_gap_ms:.3f} ms"
        for gpu in one.gpus
    ]


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "0 %"


def _rule_lines(one: Summary) -> list[str]:
    meaning = {
        "same": "launched inside a range of its own thread",
        "cross": "launched by a thread without a phase while one other thread was in one",
        "graph": "launched by a CUDA graph inside a range",
        "ambiguous": "several threads were in a phase: attributed to none",
        "outside": "launched outside of all ranges",
        "unattributed": "its API call is not in the recording",
    }
    total = sum(ops for ops, _ in one.rules.values())
    lines = [f"{'how operations found their range (whole capture)':<88}{'ops':>8}{'ms':>12}"]
    lines += [
        f"  {name:<14}{meaning[name]:<72}{ops:>8}{ms:>12.3f}"
        for name, (ops, ms) in one.rules.items()
        if ops or total == 0
    ]
    return lines


def _replay_lines(one: Summary) -> list[str]:
    meaning = {
        "node": "by the graph node, made inside a range of the capture",
        "order": "by its place in the capture",
        "name": "by its name alone",
        "none": "nothing at capture is known",
    }
    if not one.replay_rules:
        return []
    lines = ["", f"{'how operations of graph replays found their capture':<88}{'ops':>8}{'ms':>12}"]
    return lines + [
        f"  {name:<14}{meaning[name]:<72}{ops:>8}{ms:>12.3f}" for name, (ops, ms) in one.replay_rules.items()
    ]
