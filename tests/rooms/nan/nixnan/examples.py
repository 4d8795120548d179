"""Lines that several tests read."""

from __future__ import annotations

from tests.rooms.nan.nixnan.nixgen import error

FLASH = "void pytorch_flash::flash_fwd_kernel"
BIRTH = (error("-infinity", operand=1), error("-infinity", operand=2), error("NaN", operand=0))

QUANTIZED = "void kgemm_4bit_inference_naive"
TWINS = [error("subnormal", f"HMUL2 R{n}, R2, R3", function=QUANTIZED, type="f16") for n in range(5)]
REPEATED = [line.replace(QUANTIZED, "__cuda_sm70_shflsync_down_p") for line in TWINS]

# A run, its repeat, and a run of another program.
A = [error("NaN", f"FADD R{n}, R1, R2", operand=n % 3, function=FLASH) for n in range(200)]
AGAIN = [*A[:-1], error("NaN", "FADD R999, R1, R2", function=FLASH)]
B = [*A[:-20], *[error("NaN", f"FMUL R{n}, R1, R2", function="void cutlass::Kernel2") for n in range(30)]]
