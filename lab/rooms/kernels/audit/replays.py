"""Audits of a replay run."""

from __future__ import annotations

from lab.perfmodel.boards import board_of
from lab.perfmodel.calls import OpCall
from lab.perfmodel.products import product_work
from lab.perfmodel.roofs import roof_of
from lab.rooms.kernels.audit.check import Check, make_check
from lab.rooms.kernels.replay.args import ReplayPlan, Signature
from lab.rooms.kernels.replay.proof.result import Result


def of_replay(result: Result, plan: ReplayPlan) -> list[Check]:
    """Check the GPU, the sum of all recorded time, and the rates of matrix products."""
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
    """No product is faster than its board's data sheet in its own precision; unknown rates are named."""
    name = "TFLOP/s below the board's peak"
    board = board_of(result.device_name)
    rates: list[tuple[float, float, float, str]] = []
    for signature in plan.signatures:
        work = product_work(call_of(signature))
        rows = [row for row in result.rows if row.sig_id == signature.sig_id and row.us]
        kernels = [row for row in rows if row.class_ in ("gemm", "gemv")]
        dur_us = sum(row.us["median"] for row in kernels if row.us)
        if work is None or dur_us <= 0:
            continue
        names = " ; ".join(row.kernel for row in kernels)
        roof = roof_of(work, board, names)
        if roof is None:
            what = f"the rate of {names[:40]}" if board else f"the data sheet of {result.device_name}"
            return [make_check(name, False, f"not checked: {what} is not known")]
        tflops, peak_tflops = work.flops / dur_us / 1e6, roof.peak_flops_per_s / 1e12
        rates.append((tflops / peak_tflops, tflops, peak_tflops, f"{signature.op} {names[:40]}"))
    if not rates:
        return []
    share, tflops, peak_tflops, product = max(rates)
    return [
        make_check(
            name,
            share > 1,
            f"nearest: {tflops:.1f} of {peak_tflops:.0f} TFLOP/s, {product}",
            tflops=round(tflops, 1),
            peak=peak_tflops,
        )
    ]


def call_of(signature: Signature) -> OpCall:
    """Return a replayed op and its arguments, in the schema's order, for the performance model."""
    tensors = [arg.tensor for arg in signature.args or ()]
    return OpCall(
        signature.op,
        [list(tensor.shape) if tensor else [] for tensor in tensors],
        [tensor.dtype if tensor else "Scalar" for tensor in tensors],
        [list(tensor.stride) if tensor and tensor.stride else [] for tensor in tensors],
    )
