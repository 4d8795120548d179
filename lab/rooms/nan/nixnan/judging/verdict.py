"""The verdict on one log, and what nixnan cannot see: zero events prove nothing where nothing was looked at.

The limits are from nixnan's source (its tables of opcodes, the launches it intercepts) and from measurements
on an H200, where every 16-bit linear layer and prefill attention was launched by a call that it does not
intercept.
"""

from __future__ import annotations

from lab.core.words import plural
from lab.rooms.nan.nixnan.grammar import KINDS, category
from lab.rooms.nan.nixnan.log import Log

_TENSOR_CORES = ("HMMA", "DMMA", "HGMMA", "IMMA", "QGMMA")


def totals(log: Log) -> dict[str, int]:
    """Kind -> lines of operations of all types, without those of the memory check."""
    rows = [row for name, row in log.counts.items() if name != "memory"]
    return {kind: sum(row.get(kind, 0) for row in rows) for kind in KINDS}


def memory_nan_lines(log: Log) -> int:
    return sum(row.get("NaN", 0) for row in log.counts["memory"].values())


def stored_nan(log: Log) -> bool:
    """Was a NaN written to global memory, by the lines or by the report?"""
    reported = (log.report or {}).get("memory", {})
    return memory_nan_lines(log) > 0 or any(row.get("NaN", {}).get("unique", 0) for row in reported.values())


def verdict_of(log: Log) -> tuple[str, str]:
    """(verdict, why), from the log alone.

    stored: NaN in memory, which holds for a torn log too. inconclusive: the log is not complete.
    masked-intermediate: NaN or infinities in registers, none seen to be stored. subnormal-only. nothing-seen:
    no event in what nixnan looks at, which does not prove health.
    """
    kind_totals = totals(log)
    infinite = kind_totals["infinity"] + kind_totals["-infinity"]
    if stored_nan(log):
        return "stored", "A NaN was written to global memory: other kernels can read it."
    if log.integrity != "complete":
        return f"inconclusive({log.integrity})", log.reasons[0]
    if kind_totals["NaN"] or infinite:
        return (
            "masked-intermediate",
            f"{plural(kind_totals['NaN'], 'line')} of NaN and {infinite:,} of infinities in registers; no "
            "store of a NaN was seen. nixnan does not check whether an infinity was stored.",
        )
    if kind_totals["subnormal"]:
        return "subnormal-only", "Subnormal numbers, but no NaN and no infinity in what nixnan looks at."
    if kind_totals["div0"]:
        return (
            "masked-intermediate",
            "Reciprocals of zero, but no NaN and no infinity in what nixnan looks at.",
        )
    return "nothing-seen", "No event in what nixnan looks at. That does not prove health: see the coverage."


def coverage(log: Log, *, compute_capability: str | None = None) -> list[str]:
    """What this log's counts are based on: a statement, then warnings.

    compute_capability, such as `9.0`: of the GPU, None if it is not known.
    """
    opcodes = sorted({opcode for opcode, *_ in log.cells})
    major = (compute_capability or "").partition(".")[0]
    return [_statement(log, opcodes), *_warnings(log, opcodes, major.isdigit() and int(major) >= 9)]


def _statement(log: Log, opcodes: list[str]) -> str:
    if not log.contexts and not log.kernels:
        return "This log does not say which kernels nixnan looked at: what it counts is a lower bound."
    return (
        f"nixnan looked into {plural(len(log.kernels), 'kernel')} (by their cut names) and wrote about "
        f"{plural(len(opcodes), 'opcode')}. Conversions, loads, selections and integer products are never "
        "looked at, nor are kernels launched by cuLaunchKernelEx or from graphs: counts are lower bounds, "
        "and a zero does not prove health."
    )


def _warnings(log: Log, opcodes: list[str], hopper: bool) -> list[str]:
    warnings = []
    products = [name for name in log.kernels if category(name) in ("gemm", "quantized gemm", "attention")]
    if log.kernels and not products:
        warnings.append(
            "No matrix product and no fused attention is among the kernels it looked at: linear layers were "
            "not seen."
        )
    elif log.error_lines and not any(opcode.startswith(_TENSOR_CORES) for opcode in opcodes):
        warnings.append(
            "No line is of a tensor core instruction: this log does not show the matrix products."
        )
    if hopper:
        warnings.append(
            "On this GPU cuBLAS and cuDNN launch by cuLaunchKernelEx: their kernels are not looked at."
        )
    if log.logged:
        warnings.append(
            f"{plural(len(log.logged), 'kernel')} launched without being looked at, by the log's own lines."
        )
    if log.immediates:
        instructions = plural(len(log.immediates), "instruction")
        warnings.append(
            f"{instructions} with NaN or infinity as a constant: it is in the code and not an event."
        )
    return warnings
