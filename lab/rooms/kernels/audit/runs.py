"""Audits of a replay or an energy run of this room."""

from __future__ import annotations

from pathlib import Path

from lab.core.words import plural
from lab.perfmodel.boards import board_of
from lab.perfmodel.calls import OpCall
from lab.perfmodel.products import product_work
from lab.perfmodel.roofs import excess_of, roof_of
from lab.rooms.kernels.audit.check import REFUSED, Check, make_check
from lab.rooms.kernels.energy import choice as energy
from lab.rooms.kernels.energy.result import EnergyResult
from lab.rooms.kernels.replay import files as replay
from lab.rooms.kernels.replay.args import ReplayPlan, Signature
from lab.rooms.kernels.replay.files import read_file
from lab.rooms.kernels.replay.proof.result import Result


def of_run(folder: Path) -> list[Check]:
    """All audits of the results in a run folder; empty without any."""
    if not replay.is_replay(folder):  # an energy run has a replay plan too
        return []
    checks: list[Check] = []
    if (folder / replay.RESULT).is_file():
        plan = read_file(folder / replay.PLAN_FILE, ReplayPlan)
        checks += of_replay(read_file(folder / replay.RESULT, Result), plan)
    if (folder / energy.RESULT).is_file():
        checks += of_energy(read_file(folder / energy.RESULT, EnergyResult))
    return checks


def of_replay(result: Result, plan: ReplayPlan) -> list[Check]:
    """Check the GPU, the sum of all recorded time, and the rates of matrix products."""
    recorded, replayed = result.trace_device_name or "a CPU", result.device_name or result.device
    on_cpu = not plan.origin.has_kernels and result.device == "cpu"
    answer = f"recorded on {recorded}, replayed on {replayed}" + (": no kernel is claimed" if on_cpu else "")
    same_gpu = make_check("replayed on the recorded GPU", not (result.same_gpu or on_cpu), answer)
    all_us = sum(sum(call.dur_us) for call in plan.calls) + sum(orphan.dur_us for orphan in plan.orphans)
    accounted_us = sum(cover.time_us for cover in result.coverage.values())
    answer = f"{accounted_us:.1f} of {all_us:.1f} us are accounted for"
    missing = abs(accounted_us - all_us) > 1e-3 * all_us + 1
    return [same_gpu, make_check("coverage and residual add up", missing, answer), *_peaks(result, plan)]


def _peaks(result: Result, plan: ReplayPlan) -> list[Check]:
    """No product is faster than its board's data sheet in its own precision; unknown rates are named."""
    name = "TFLOP/s below the board's peak"
    board = board_of(result.device_name)
    times_us = {row.sig_id: 0.0 for row in result.rows}
    names = {row.sig_id: "" for row in result.rows}
    for row in result.rows:
        if row.us and row.class_ in ("gemm", "gemv", "splitk_reduce"):
            times_us[row.sig_id] += float(row.us["median"])
            names[row.sig_id] += f"{row.name} ; "
    checks, unknown = [], 0
    for signature in plan.signatures:
        work, us = product_work(call_of(signature)), times_us.get(signature.sig_id, 0.0)
        if work is None or us <= 0:
            continue
        roof = roof_of(work, board, names[signature.sig_id])
        unknown += roof is None
        if roof is not None and (excess := excess_of(roof, us * 1e-6)) and "cannot be" in excess:
            checks.append(make_check(name, True, f"{signature.op} {names[signature.sig_id][:40]}: {excess}"))
    sheet = "" if board else f": lab has no data sheet of {result.device_name or 'this GPU'}"
    answer = f"{plural(unknown, 'product')} not checked{sheet}"
    return checks or [make_check(name, False, answer if unknown else "every product is below its peak")]


def call_of(signature: Signature) -> OpCall:
    """Return a replayed op and its arguments, in the schema's order, for the performance model."""
    tensors = [arg.tensor for arg in signature.args or ()]
    return OpCall(
        signature.op,
        [list(tensor.shape) if tensor else [] for tensor in tensors],
        [tensor.dtype if tensor else "Scalar" for tensor in tensors],
        [list(tensor.stride) if tensor and tensor.stride else [] for tensor in tensors],
        [str(arg.value) for arg in signature.args or ()],
    )


def of_energy(result: EnergyResult) -> list[Check]:
    """What the run itself refused, and the closure with every factor."""
    flags = [flag for row in result.rows if row.measured for flag in row.flags if flag.startswith(REFUSED)]
    answer = f"{plural(len(flags), 'measured call')} with an impossible figure"
    checks = [make_check("energy", True, reason) for reason in result.refused]
    checks.append(make_check("energy of calls is possible", bool(flags), "; ".join([answer, *flags[:1]])))
    if (closure := result.closure) is not None:
        error = "an unknown error" if closure.net_error_pct is None else f"± {closure.net_error_pct:.1f} %"
        answer = (
            f"kernels {closure.sum_net_j:.3f} J against {closure.measured_net_j:.3f} J above idle: "
            f"{closure.net_pct:+.1f} % with {error}; gross {closure.predicted_j:.3f} J against "
            f"{closure.measured_j:.3f} J ({closure.total_pct:+.1f} %)"
        )
        values = {name: getattr(closure, name) for name in closure.__struct_fields__}
        factors = {name: round(value, 6) for name, value in values.items() if value is not None}
        checks.append(make_check("closure", not result.bars.get("net_closure"), answer, **factors))
    return checks
