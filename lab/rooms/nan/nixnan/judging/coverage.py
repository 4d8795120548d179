"""What nixnan sees and what it cannot: zero events prove nothing where nothing was looked at.

From nixnan's source (its tables of opcodes, the launches it intercepts) and from measurements on an H200,
where every 16-bit linear layer and prefill attention was launched by a call that it does not intercept.
"""

from __future__ import annotations

from typing import Any

from lab.core.words import plural
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
    ("instruction", "IMMA", "integer products: NaN in int8 weights is not seen", _ALL),
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
    (
        "instruction",
        "LDG, LDS, STS, ATOM",
        "loads, shared memory and atomics: a NaN that arrives by them is not seen",
        _ALL,
    ),
    (
        "launch",
        "cuLaunchKernelEx",
        "how cuBLAS and cuDNN launch on Hopper: none of their kernels is instrumented",
        _HOPPER,
    ),
    ("launch", "CUDA graphs", "a graph's kernels are not intercepted", _ALL),
    ("count", "SAMPLING above 0", "births in launches that are left out are not seen", _ALL),
    ("count", "131,072 instructions", "nixnan's tables end there, unchecked", _ALL),
)
_TENSOR_CORES = ("HMMA", "DMMA", "HGMMA", "IMMA", "QGMMA")


def coverage(log: Log, *, compute_capability: str | None = None) -> dict[str, Any]:
    """What this log's counts are based on.

    Keys: seen, unseen, kernels, opcodes, statement, warnings. compute_capability, such as `9.0`, decides
    which gaps apply to this run; None if it is not known.
    """
    hopper = compute_capability is not None and _major(compute_capability) >= 9
    unseen = [
        {
            "level": level,
            "what": unseen_part,
            "why": reason,
            "where": source,
            "applies": source == _ALL or hopper or None,
        }
        for level, unseen_part, reason, source in UNSEEN
        if source == _ALL or compute_capability is None or hopper
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
        f"nixnan looked into {plural(len(log.kernels), 'kernel')} (by their cut names) and wrote about "
        f"{plural(len(opcodes), 'opcode')}. Conversions, loads, selections and integer products are never "
        "looked at, nor are kernels launched by cuLaunchKernelEx or from graphs: counts are lower bounds, "
        "and a zero is no proof of health."
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


def _major(compute_capability: str) -> int:
    head = compute_capability.partition(".")[0]
    return int(head) if head.isdigit() else 0
