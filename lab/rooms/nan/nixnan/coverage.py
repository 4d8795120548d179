"""What nixnan sees and what it cannot: a count of zero is no health where nothing was looked at.

From nixnan's source (its tables of opcodes, the launches it intercepts) and from measurements on an H200, where every
16-bit linear layer and prefill attention was launched by a call that it does not intercept.
"""

from __future__ import annotations

from typing import Any

from lab.rooms.nan.nixnan.categories import category
from lab.rooms.nan.nixnan.log import Log

SEEN = (
    "HMMA.16816.F16",
    "HMMA.16816.F32",
    "HMMA.16816.F32.BF16",
    "HMMA.1684.F32.TF32",
    "DMMA",
    "HADD2",
    "HMUL2",
    "HFMA2",
    "HFMA2.BF16_V2",
    "FADD",
    "FMUL",
    "FFMA",
    "MUFU",
    "DADD",
    "DMUL",
    "DFMA",
    "STG (NaN in what is stored)",
)
_ALL, _HOPPER = "everywhere", "Hopper and newer"
UNSEEN = (
    (
        "instruction",
        "HGMMA and QGMMA",
        "tensor core products of Hopper and FP8: not in nixnan's tables",
        _HOPPER,
    ),
    ("instruction", "IMMA", "integer products: int8 weights swallow NaN unseen", _ALL),
    (
        "instruction",
        "HMMA.1688, HFMA2.MMA, HADD2.F32, HADD2.BF16_V2, HMUL2.BF16_V2",
        "forms not in nixnan's tables",
        _ALL,
    ),
    (
        "instruction",
        "F2F, F2FP, I2F",
        "conversions: where an infinity of a 16-bit type is usually born",
        _ALL,
    ),
    ("instruction", "FSEL, FMNMX, FSET", "selections and comparisons", _ALL),
    ("instruction", "LDG, LDS, STS, ATOM", "loads, shared memory and atomics: a NaN arrives unseen", _ALL),
    (
        "launch",
        "cuLaunchKernelEx",
        "how cuBLAS and cuDNN launch on Hopper: no kernel of them is instrumented",
        _HOPPER,
    ),
    ("launch", "CUDA graphs", "a graph's kernels are not intercepted", _ALL),
    ("count", "SAMPLING above 0", "launches that are left out hide births", _ALL),
    ("count", "131,072 instructions", "nixnan's tables end there, unchecked", _ALL),
)
_TENSOR_CORES = ("HMMA", "DMMA", "HGMMA", "IMMA", "QGMMA")


def coverage(log: Log, *, compute_capability: str | None = None) -> dict[str, Any]:
    """What this log's counts rest on: {"seen", "unseen", "kernels", "opcodes", "statement", "warnings"}.

    compute_capability: `9.0`, where it is known; it decides which gaps are certain for this run.
    """
    hopper = compute_capability is not None and _major(compute_capability) >= 9
    unseen = [
        {"level": level, "what": what, "why": why, "where": where, "applies": where == _ALL or hopper or None}
        for level, what, why, where in UNSEEN
        if where == _ALL or compute_capability is None or hopper
    ]
    opcodes = sorted({cell.opcode for cell in log.cells})
    return {
        "seen": list(SEEN),
        "unseen": unseen,
        "kernels": len(log.kernels),
        "opcodes": opcodes,
        "statement": _statement(log, opcodes),
        "warnings": _warnings(log, opcodes, hopper),
    }


def _statement(log: Log, opcodes: list[str]) -> str:
    if not log.contexts and not log.kernels:
        return "This log does not say which kernels nixnan looked at: what it counts is a lower bound."
    return (
        f"nixnan looked into {len(log.kernels)} kernels (by their cut names) and wrote about {len(opcodes)} opcodes. "
        "Conversions, loads, selections and integer products are never looked at, nor are kernels launched by "
        "cuLaunchKernelEx or from graphs: counts are lower bounds, and a zero is no proof of health."
    )


def _warnings(log: Log, opcodes: list[str], hopper: bool) -> list[str]:
    said = []
    products = [name for name in log.kernels if category(name) in ("gemm", "quantized gemm", "attention")]
    if log.kernels and not products:
        said.append(
            "No matrix product and no fused attention is among the kernels it looked at: linear layers went by unseen."
        )
    elif log.error_lines and not any(opcode.startswith(_TENSOR_CORES) for opcode in opcodes):
        said.append(
            "No line is of a tensor core instruction: what the matrix products did is not known from this log."
        )
    if hopper:
        said.append(
            "On this GPU cuBLAS and cuDNN launch by cuLaunchKernelEx: their kernels are not looked at."
        )
    if log.logged:
        said.append(
            f"{len(log.logged)} kernels were launched without being looked at, so the log says itself."
        )
    if log.immediates:
        said.append(
            f"{len(log.immediates)} instructions carry NaN or infinity as a constant: written in the code, no event."
        )
    return said


def _major(compute_capability: str) -> int:
    head = compute_capability.partition(".")[0]
    return int(head) if head.isdigit() else 0
