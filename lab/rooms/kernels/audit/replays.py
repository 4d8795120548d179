"""Audits of a replay run."""

from __future__ import annotations

import math

from lab.rooms.kernels.audit.check import Check, make_check
from lab.rooms.kernels.replay.args import ReplayPlan, Signature
from lab.rooms.kernels.replay.proof.result import Result

# Dense tensor-core TFLOP/s of fp16 and bf16 by the vendors' data sheets: the highest of all types above fp8.
PEAK_TFLOPS = {
    "H200": 989.0,
    "H100": 989.0,
    "A100": 312.0,
    "A6000": 155.0,
    "V100": 125.0,
    "MI300X": 1307.0,
    "GTX 1080 Ti": 11.4,
}
# Names of the two factors of a matrix product.
FACTORS = {
    "aten::mm": ("self", "mat2"),
    "aten::bmm": ("self", "mat2"),
    "aten::addmm": ("mat1", "mat2"),
    "aten::baddbmm": ("batch1", "batch2"),
}


def of_replay(result: Result, plan: ReplayPlan) -> list[Check]:
    """The GPU, the sum of all recorded time, and the fastest matrix product."""
    return [_same_gpu(result, plan), _accounted(result, plan), *_below_peak(result, plan)]


def _same_gpu(result: Result, plan: ReplayPlan) -> Check:
    name = "replayed on the recorded GPU"
    if not plan.origin.has_kernels and result.device == "cpu":
        return make_check(name, False, "recorded and replayed on a CPU: no kernel is claimed")
    recorded, replayed = result.trace_device_name or "a CPU", result.device_name or result.device
    return make_check(name, not result.same_gpu, f"recorded on {recorded}, replayed on {replayed}")


def _accounted(result: Result, plan: ReplayPlan) -> Check:
    whole = sum(sum(call.dur_us) for call in plan.calls) + sum(orphan.dur_us for orphan in plan.orphans)
    accounted = sum(cover.time_us for cover in result.coverage.values())
    return make_check(
        "coverage and residual add up",
        abs(accounted - whole) > 1e-3 * whole + 1,
        f"{accounted:.1f} of {whole:.1f} us are accounted for",
        recorded_us=round(whole, 1),
        accounted_us=round(accounted, 1),
    )


def _below_peak(result: Result, plan: ReplayPlan) -> list[Check]:
    """No GEMM is faster than the board: 2 M N K over its time against the data sheet.

    Nothing for unknown GPUs.
    """
    peak = next((tflops for name, tflops in PEAK_TFLOPS.items() if name in result.device_name), None)
    by_id = {signature.sig_id: signature for signature in plan.signatures}
    fastest, what = 0.0, ""
    for row in result.rows:
        work = flop(by_id[row.sig_id])
        if work and row.us and row.class_ in ("gemm", "gemv") and row.us["median"] > 0:
            tflops = work / row.us["median"] / 1e6
            if tflops > fastest:
                fastest, what = tflops, f"{row.op} {row.kernel[:40]}"
    if peak is None or not fastest:
        return []
    return [
        make_check(
            "TFLOP/s below the board's peak",
            fastest > peak,
            f"fastest: {fastest:.1f} of {peak:.0f} TFLOP/s, {what}",
            tflops=round(fastest, 1),
            peak=peak,
        )
    ]


def flop(signature: Signature) -> float:
    """Floating-point operations of a matrix product, two per multiply-add; 0 for other ops."""
    names = FACTORS.get(signature.op)
    by_name = {arg.name: arg.tensor for arg in signature.args or () if arg.tensor}
    if not names or any(name not in by_name for name in names):
        return 0.0
    a, b = (by_name[name].shape for name in names)
    return 2.0 * math.prod(a) * b[-1] if a and b else 0.0
