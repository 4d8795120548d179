"""The summary of a capture on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lab.core.words import first_few, plural, printable
from lab.recordings.integrity.words import bound, idle_bound, integrity_lines, marked
from lab.recordings.names import short_name
from lab.recordings.projection import Offer
from lab.rooms.nsys.captures.phases import Phase
from lab.rooms.nsys.captures.summary import TOP, Share, Summary

_WHOLE_CAPTURE = "the whole capture"
TOOLS = {
    "nsys": "Nsight Systems",
    "kineto": "torch.profiler",
    "rocpd": "rocprofv3 (rocpd)",
    "rpd": "rocmProfileData",
    "pftrace": "a tool that writes Perfetto files",
    "xplane": "JAX's profiler",
}


def summary_text(summary: Summary) -> str:
    return "\n".join(map(_one_line, _lines(summary))) + "\n"


def _one_line(line: str) -> str:
    """A name from outside may neither command the terminal nor begin a line of its own."""
    return printable(line.replace("\n", "\\n")).rstrip()


def summaries_text(found: Sequence[Summary]) -> str:
    """One row per process, if there are several; then the summary of each."""
    if len(found) == 1:
        return summary_text(found[0])
    head = f"{plural(len(found), 'process')}: per step, ms"
    columns = "".join(f"{name:>10}" for name in ("steps", "kernels", "kernel", "busy", "span"))
    rows = [f"{head:<44}{columns}{'share in GEMMs':>16}"]
    for one in found:
        whole = one.phases[0]
        times = "".join(f"{ms:>10.3f}" for ms in (whole.kernel_ms, whole.busy_ms, whole.span_ms))
        counts = f"{len(one.steps) or '-':>10}{_launches(whole.kernels):>10}"
        rows.append(f"  {one.label[:41]:<42}{counts}{times}{_share(one.matmul_share):>16}")
    overview = "\n".join(map(_one_line, rows)) + "\n"
    return "\n".join([overview, *map(summary_text, found)])


def _lines(one: Summary) -> list[str]:
    tool = TOOLS.get(one.collector, one.collector)
    at_least = _bound(bound(one.lacks, "gpu"))
    schema = f", schema {one.schema}" if one.schema else ""
    lines = [
        f"{one.source}",
        f"recorded by {tool} {one.version or '(unknown version)'}{schema}; attribution: {one.attribution}",
        *([f"of {one.label}"] if one.num_processes > 1 else []),
        f"measured: {_steps_line(one)}",
        *integrity_lines(one.lacks),
        *(["  every share is one of the recorded kernel time"] if _recorded(one) else []),
        "",
        *_phase_lines(one),
        "",
        *_share_lines(f"kernel classes, {_per_step(one)}", one.classes, at_least),
        f"  matrix products: {_share(one.matmul_share)} of {_recorded(one)}kernel time"
        if one.matmul_share is not None
        else f"  {_why_no_classes(one)}: classes and matrix products are unknown",
        "",
        *_share_lines(f"costliest kernels, {_per_step(one)}", one.top, at_least, short=True),
    ]
    if one.origins:
        title = f"backward kernels by the forward range they belong to, {_per_step(one)}"
        lines += ["", *_share_lines(title, one.origins, _bound(bound(one.lacks)))]
    if one.replayed:
        named = tuple(
            replace(share, name=share.name or "(no operator known)") for share in one.replayed[:TOP]
        )
        title = f"kernels of graph replays by their operator at capture, {_per_step(one)}"
        lines += ["", *_share_lines(title, named, at_least)]
    lines += ["", *_gpu_lines(one), "", *_rule_lines(one), *_replay_lines(one)]
    lines += [f"note: {offer.sentence} ({_offered(offer)})" for offer in one.offers[:8]]
    return lines + [f"note: {problem}" for problem in one.problems]


def _why_no_classes(one: Summary) -> str:
    if one.has_bare_steps:
        return "no operation is known to belong to a step"
    return "no kernels, or no names of kernels, were recorded"


def _offered(offer: Offer) -> str:
    return f"{offer.kernel_ms:.3f} ms, launched by another thread, in no phase"


def _steps_line(one: Summary) -> str:
    if not one.steps:
        which = f"{one.part}, as a whole" if one.part else f"{_WHOLE_CAPTURE} (no range in it is a step)"
        warm = plural(one.warmup_left_out, "operation")
        return which + (
            f"; {warm} of warm-up left out" if one.warmup_left_out else ", with any warm-up in it"
        )
    count, ms = one.left_out
    left = f"; {plural(count, 'operation')}, {ms:.3f} ms outside of them" if count else ""
    which = one.steps[0] if len(one.steps) == 1 else f"{one.steps[0]} to {one.steps[-1]}"
    part = f"{one.part}: " if one.part else ""
    return f"{part}{plural(len(one.steps), 'step')} ({which}){left}"


def _phase_lines(one: Summary) -> list[str]:
    columns = f"{'kernels':>10}{'kernel':>10}{'± sd':>8}{'busy':>10}{'span':>10}{'host':>10}{'share':>8}"
    at_least = _bound(bound(one.lacks))
    head = f"{_per_step(one) + ', ms' + at_least:<44}{columns}"
    shapes = one.phases[0].gemm_tflop is not None
    lines = [head + (f"{'TFLOP':>9}{'TFLOP/s':>9}" if shapes else "")]
    for phase in one.phases:
        name = "  " * len(phase.path) + (
            phase.path[-1] if phase.path else ("step" if one.steps else _all_of(one))
        )
        sd = f"{phase.kernel_sd_ms:>8.3f}" if len(one.steps) > 1 else f"{'-':>8}"
        times = f"{phase.kernel_ms:>10.3f}{sd}{phase.busy_ms:>10.3f}{phase.span_ms:>10.3f}"
        host = f"{phase.host_ms:>10.3f}" if phase.host_ms else f"{'':>10}"
        rate = _rate(phase) if shapes else ""
        lines.append(
            f"{name[:43]:<44}{_launches(phase.kernels):>10}{times}{host}{_share(phase.share):>8}{rate}"
        )
    uneven = [phase for phase in one.phases if len(phase.kernels) > 1]
    for phase in uneven[:3]:
        counts = first_few([*map(str, phase.kernels)], 10)
        lines.append(f"  launches of {'/'.join(phase.path) or 'the step'} differ between steps: {counts}")
    if more := len(uneven[3:]):
        lines.append(f"  launches of {plural(more, 'more phase')} differ between steps")
    return lines


def _rate(phase: Phase) -> str:
    if not phase.gemm_tflop or not phase.gemm_ms:
        return ""
    return f"{phase.gemm_tflop:>9.3g}{phase.gemm_tflop / phase.gemm_ms * 1000:>9.1f}"


def _launches(counts: tuple[int, ...]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"


def _bound(word: str) -> str:
    """`, at least` after a heading."""
    return f", {word}" if word else ""


def _recorded(one: Summary) -> str:
    return "recorded " if bound(one.lacks, "gpu") else ""


def _per_step(one: Summary) -> str:
    return "per step" if one.steps else "in all"


def _all_of(one: Summary) -> str:
    return "what was selected" if one.part else _WHOLE_CAPTURE


def _share_lines(
    title: str, shares: tuple[Share, ...], at_least: str = "", *, short: bool = False
) -> list[str]:
    lines = [f"{f'{title}{at_least}':<70}{'kernels':>10}{'ms':>12}{'share':>8}"]
    for one in shares:
        name = _shortened(short_name(one.name) if short else one.name)
        count = f"{one.per_step:g}" if one.per_step == int(one.per_step) else f"{one.per_step:.2f}"
        ms = one.kernel_ms * one.per_step / one.kernels
        lines.append(f"  {name:<68}{count:>10}{ms:>12.3f}{one.share:>8.1%}")
    return lines


def _share(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def _shortened(name: str, width: int = 66) -> str:
    """The name without its middle, because long names differ at their ends."""
    return name if len(name) <= width else f"{name[: width - 30]}...{name[-27:]}"


def _gpu_lines(one: Summary) -> list[str]:
    return [
        f"GPU {gpu.device} ({gpu.name}): busy {marked(bound(one.lacks, 'gpu'))}{gpu.busy_ms:.3f} ms, "
        f"idle {idle_bound(one.lacks)}{gpu.idle_ms:.3f} ms between operations "
        f"({_percent(gpu.idle_ms, gpu.busy_ms + gpu.idle_ms)}), "
        f"longest gap {idle_bound(one.lacks)}{gpu.longest_gap_ms:.3f} ms"
        for gpu in one.gpus
    ]


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "0 %"


def _rules_title(one: Summary) -> str:
    return f"how operations found their range ({one.part or 'whole capture'})"


def _rule_lines(one: Summary) -> list[str]:
    meaning = {
        "same": "launched inside a range of its own thread",
        "cross": "launched by a thread without a phase while one other thread was in one",
        "graph": "launched by a CUDA or HIP graph inside a range",
        "ambiguous": "several threads were in a phase: attributed to none",
        "outside": "launched outside of all ranges",
        "unattributed": "its API call is not in the recording",
    }
    total = sum(ops for ops, _ in one.rules.values())
    lines = [f"{_rules_title(one):<88}{'ops':>8}{'ms':>12}"]
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
