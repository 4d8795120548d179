"""What is made of sites: who was born where and why, what repeats what, what two logs have in common."""

from __future__ import annotations

import json

import pytest

from lab.rooms.nan.nixnan.categories import category, shown
from lab.rooms.nan.nixnan.diff import diff
from lab.rooms.nan.nixnan.log import Log
from lab.rooms.nan.nixnan.parse import parse
from lab.rooms.nan.nixnan.sites import class_table, instructions
from lab.rooms.nan.nixnan.summary import summary
from tests.rooms.nan.nixnan import nixgen
from tests.rooms.nan.nixnan.nixgen import error, log


@pytest.fixture
def made(tmp_path):
    count = iter(range(10**6))

    def make(*lines: str, **named) -> Log:
        return parse(nixgen.write(tmp_path / f"{next(count)}.nixnan", log(*lines, **named)))

    return make


FLASH = "void pytorch_flash::flash_fwd_kernel"
BIRTH = (error("-infinity", operand=1), error("-infinity", operand=2), error("NaN", operand=0))


def test_an_instruction_bears_passes_or_takes_in_a_kind(made):
    found = made(
        *BIRTH,
        error("NaN", "FADD R3, R2, R4", operand=1),
        error("NaN", "FADD R3, R2, R4", operand=0),
        error("NaN", "FFMA.SAT R8, R3, R9, 0.5", operand=1),
        error("NaN", "STG.E [R2.64], R3", operand=1),
        error("NaN", "FMUL R1, R1, R1", operand=None),
    )
    table = class_table(instructions(found))
    assert table["NaN"] == {"birth": 1, "transit": 1, "source_only": 1, "unknown": 1}
    assert table["-infinity"] == {"birth": 0, "transit": 0, "source_only": 1, "unknown": 0}


RULES = {
    "opposite infinities by a minus in the text": (BIRTH, "inf - inf", "high", True),
    "the same outside a softmax": (
        [error("infinity", "FADD R2, -R7, R2", operand=n, function="void add_one") for n in (1, 2)]
        + [error("NaN", "FADD R2, -R7, R2", function="void add_one")],
        "inf - inf",
        "high",
        False,
    ),
    "one infinity seen": (
        [error("infinity", operand=1, function="f"), error("NaN", function="f")],
        "inf - inf",
        "medium",
        False,
    ),
    "a subtraction compiled as a fused product": (
        [
            error("infinity", "FFMA R4, R15, UR6, R16", operand=1),
            error("infinity", "FFMA R4, R15, UR6, R16", operand=3),
            error("NaN", "FFMA R4, R15, UR6, R16"),
        ],
        "inf - inf",
        "medium",
        False,
    ),
    "an infinite factor": (
        [error("-infinity", "FMUL R1, R2, R3", operand=2), error("NaN", "FMUL R1, R2, R3")],
        "0 x inf",
        "high",
        False,
    ),
    "an infinite factor of a fused product": (
        [error("infinity", "@P0 FFMA R1, R2, R3, R4", operand=1), error("NaN", "@P0 FFMA R1, R2, R3, R4")],
        "0 x inf",
        "medium",
        False,
    ),
    "tensor cores": (
        [
            error("infinity", "HMMA.16816.F32 R0, R4, R6, R0", operand=1, type="f16"),
            error("NaN", "HMMA.16816.F32 R0, R4, R6, R0"),
        ],
        "inf in a product sum",
        "medium",
        False,
    ),
    "half overflow": ([error("infinity", "HMUL2 R1, R2, R3", type="f16")], "overflow", "high", False),
    "exponential overflow": ([error("infinity", "MUFU.EX2 R1, R2")], "overflow", "high", False),
    "reciprocal of zero": (
        [error("div0", "MUFU.RCP R1, R2", operand=1), error("infinity", "MUFU.RCP R1, R2")],
        "division by zero",
        "high",
        False,
    ),
    "reciprocal root of zero": (
        [error("div0", "MUFU.RSQ R1, R2", operand=1)],
        "division by zero",
        "high",
        True,
    ),
    "root of a negative number": ([error("NaN", "MUFU.RSQ R1, R2")], "outside the domain", "medium", False),
    "a constant": ([error("NaN", "MUFU.RSQ R3, -QNAN", operand=1)], "constant NaN", "high", True),
    "no reason to be seen": ([error("NaN", "FADD R1, R2, R3")], "born unseen", "low", False),
    "a store": ([error("NaN", "STG.E [R2.64], R3", operand=1)], "stored NaN", "high", False),
    "a mask": ([error("-infinity", "FMUL R1, R2, R3", operand=n) for n in (0, 1)], "masking", "medium", True),
    "subnormals": ([error("subnormal", "HMUL2 R1, R2, R3", type="f16")], "subnormal", "high", True),
    "infinities first, then NaN": (
        [error("infinity", operand=1), error("infinity", operand=2), error("NaN"), error("NaN", operand=1)],
        "perhaps inf - inf",
        "medium",
        False,
    ),
    "NaN first, then infinities": (
        [error("NaN", operand=1), error("NaN"), error("infinity", operand=1), error("infinity", operand=2)],
        "perhaps inf - inf",
        "low",
        False,
    ),
}


@pytest.mark.parametrize("lines, cause, confidence, benign", RULES.values(), ids=RULES)
def test_the_cause_of(made, lines, cause, confidence, benign):
    (row,) = summary(made(*lines))["causes"]
    assert (row["cause"], row["confidence"], row["benign"]) == (cause, confidence, benign), row
    assert row["evidence"][0]["raw"] in lines and row["evidence"][0]["line"] > len(nixgen.BANNER)


def test_a_text_that_stands_for_several_instructions_is_less_sure(made):
    (row,) = summary(made(*RULES["an infinite factor"][0], error("NaN", "FMUL R1, R2, R3")))["causes"]
    assert row["confidence"] == "medium" and "share this text" in row["why"]


TWINS = [
    error("subnormal", f"HMUL2 R{n}, R2, R3", function="void kgemm_4bit_inference_naive", type="f16")
    for n in range(5)
]
REPEATED = [line.replace("void kgemm_4bit_inference_naive", "__cuda_sm70_shflsync_down_p") for line in TWINS]


def test_a_device_function_that_repeats_a_kernel_is_counted_once_and_said(made):
    found = made(*TWINS, *REPEATED)
    said = summary(found)
    assert said["twins"] == [
        {"function": "__cuda_sm70_shflsync_down_p", "same_as": "void kgemm_4bit_inference_naive", "sites": 5}
    ]
    (row,) = said["kernels"]
    assert (row["sites"], row["lines"], row["repeated_lines"]) == (5, 5, 5)
    assert (
        found.categories == {"quantized gemm": 10}
        and found.site_count == 10
        and found.integrity == "complete"
    )


def test_a_device_function_with_an_entry_of_its_own_stays(made):
    found = made(*TWINS, *REPEATED, error("NaN", "FADD R9, R9, R9", function="__cuda_sm70_shflsync_down_p"))
    assert found.twins == {} and found.categories["device function"] == 6


@pytest.mark.parametrize(
    "name, word",
    {
        FLASH: "attention",
        "void cutlass::Kernel2": "gemm",
        "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x6_tn": "gemm",
        "void kgemm_4bit_inference_naive": "quantized gemm",
        "void kDequantizeBlockwise": "quant",
        "void ": "unnamed",
        "void at::native::": "unnamed",
        "void at::native::vectorized_elementwise_kernel": "elementwise",
        "__internal_x": "device function",
        "void cublasLt::splitKreduce_kernel": "splitk_reduce",
        "std::enable_if": "gemv",
        "triton_poi_fused_add_0": "triton",
        "void at::native::reduce_kernel": "reduce",
        "rd_step_fp32": "other",
        "nvjet_sm90_hsh_64x8_64x16_1x2": "gemm",
    }.items(),
)
def test_a_function_belongs_to(name, word):
    assert category(name) == word


def test_void_is_stripped_to_be_shown_and_kept_in_data():
    assert shown("void f") == "f" and shown("void ") == "(name cut away)"


@pytest.mark.parametrize(
    "lines, end, verdict",
    [
        ([], True, "nothing-seen"),
        ([error("subnormal")], True, "subnormal-only"),
        (BIRTH, True, "masked-intermediate"),
        ([error("NaN", "STG.E [R2.64], R3", operand=1)], True, "stored"),
        (BIRTH, False, "inconclusive(truncated)"),
        ([error("NaN", "STG.E [R2.64], R3", operand=1)], False, "stored"),
        ([error("div0", "MUFU.RSQ R1, R2")], True, "masked-intermediate"),
    ],
)
def test_the_verdict_of_the_log_alone(made, lines, end, verdict):
    said = summary(made(*lines, end=end))
    assert said["verdict"] == verdict and json.loads(json.dumps(said)) == said


def test_zero_events_are_no_health(made):
    said = summary(made(), compute_capability="9.0")
    assert "no proof of health" in said["verdict_why"] and "lower bounds" in said["coverage"]["statement"]
    assert any("cuLaunchKernelEx" in warning for warning in said["coverage"]["warnings"])
    assert any(row["what"].startswith("HGMMA") and row["applies"] for row in said["coverage"]["unseen"])


def test_gaps_of_hopper_are_no_gaps_of_ampere(made):
    said = summary(made(), compute_capability="8.6")["coverage"]
    assert not any("Hopper" in row["where"] for row in said["unseen"]) and said["unseen"]


A = [error("NaN", f"FADD R{n}, R1, R2", operand=n % 3, function=FLASH) for n in range(200)]
AGAIN = [*A[:-1], error("NaN", "FADD R999, R1, R2", function=FLASH)]
B = [*A[:-20], *[error("NaN", f"FMUL R{n}, R1, R2", function="void cutlass::Kernel2") for n in range(30)]]


def test_a_difference_is_judged_by_the_baselines_own_repeat(made):
    a, again, b = made(*A), made(*AGAIN), made(*B)
    result = diff(a, b, again)
    assert result["beyond_noise"] is True and (result["appeared_count"], result["vanished_count"]) == (30, 19)
    assert result["in_noise_count"] == 1 and result["noise"]["flickering"] == 2
    assert diff(a, made(*A[1:]), again)["beyond_noise"] is False
    assert diff(a, b)["beyond_noise"] is None and "Not judged" in diff(a, b)["verdict"]
    rows = {
        row["category"]: (row["appeared"], row["vanished"], row["in_noise"]) for row in result["by_category"]
    }
    assert rows == {"attention": (0, 19, 1), "gemm": (30, 0, 0)}
    assert json.loads(json.dumps(result)) == result


def test_other_registers_are_a_move_and_other_kinds_a_change(made):
    a = made(error("NaN", "FADD R1, R2, R3"), error("NaN", "FMUL R1, R2, R3"))
    result = diff(a, made(error("NaN", "FADD R7, R8, R9"), error("infinity", "FMUL R1, R2, R3")))
    assert (result["appeared_count"], result["vanished_count"], result["moved_count"]) == (1, 1, 1)
    assert result["changed_count"] == 1 and result["changed"][0]["kinds_before"] == {"NaN": 1}


def test_a_comparison_warns_of_logs_that_are_not_whole_and_merges_twins(made):
    result = diff(made(*TWINS, *REPEATED), made(*TWINS, *REPEATED, end=False))
    assert result["sites_a"] == 5 and result["jaccard"] == 1.0
    assert any("B is truncated" in warning for warning in result["warnings"])
    assert any("compared once" in warning for warning in result["warnings"])


def test_two_logs_without_sites_are_the_same(made):
    assert diff(made(), made(), made())["beyond_noise"] is False
