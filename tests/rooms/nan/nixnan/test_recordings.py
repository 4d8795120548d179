"""The recordings: every line understood, the verdict on each, and the published numbers."""

from __future__ import annotations

import pytest

from lab.rooms.nan.nixnan.judging.causes import causes
from lab.rooms.nan.nixnan.log import class_table, instructions, memory_nan_lines, verdict_of
from lab.rooms.nan.nixnan.reading.parse import parse
from lab.rooms.nan.nixnan.terminal import function_rows

pytestmark = pytest.mark.data

# file -> lines of events, torn lines, sites, integrity
LOGS = {
    "claude_baseline.nixnan.gz": (10_232, 0, 3_638, "complete"),
    "claude_bfloat16.nixnan.gz": (9_614, 0, 2_154, "complete"),
    "claude_eager.nixnan.gz": (2_816, 0, 644, "complete"),
    "claude_attention_clip.nixnan.gz": (1_073, 0, 881, "complete"),
    "h200_mistral_eager_overflow.nixnan.gz": (786, 0, 469, "complete"),
    "h200_torch_half_overflow.nixnan.gz": (227, 0, 217, "complete"),
    "03b_quickdemo_short_complete.txt": (40, 0, 40, "truncated"),
    "05_histogram_exponent_ranges.txt": (4, 0, 4, "inconsistent"),
    "06_torn_lines_two_writer_threads.txt": (21, 34, 16, "torn"),
    "07_pytorch_erfinv_f64_complete.txt": (2, 0, 2, "complete"),
    "09_torch_compile_triton_source_lines.txt": (60, 0, 60, "truncated"),
    "11_memory_store_STG_nan.txt": (19, 0, 12, "truncated"),
    "13_old_format_at_line_0.txt": (6, 0, 6, "inconsistent"),
    "15_dmma_f64_hmma_f16.txt": (60, 0, 32, "truncated"),
    "16_immediate_warnings_double_prefix.txt": (0, 0, 0, "truncated"),
    "17b_expect_fp32_rcp_div0.txt": (0, 0, 0, "inconsistent"),
    "18_clean_zero_events.txt": (0, 0, 0, "complete"),
    "20_empty_multiprocess_or_no_cuda.txt": (0, 0, 0, "empty"),
    "21_truncated_killed_run.txt": (29, 0, 3, "truncated"),
    "22_anonymous_namespace_names.txt": (29, 1, 17, "torn"),
}


@pytest.mark.parametrize("name", LOGS)
def test_every_recording_reads_as(shared_data, name):
    found = parse(shared_data / "nixnan" / name)
    assert (found.error_lines, found.torn_lines, found.site_count, found.integrity) == LOGS[name]
    assert sum(found.categories.values()) == found.error_lines == sum(found.functions.values())
    if found.integrity == "complete":
        for label, row in found.report.items():
            for kind, result in row.items() if label != "memory" else ():
                lines = found.counts[label][kind]
                both = found.counts[label]["infinity"] if kind == "-infinity" else 0
                assert lines <= result["unique"] <= lines + both


# type -> NaN lines, NaN repeats; half: f16 or bf16
REFERENCE = {
    "baseline": ("f16", 2_092, 28_737_328, 4_943, 213_324_749, (4, 1_084, 0)),
    "bfloat16": ("bf16", 1_272, 11_572_324, 4_544, 104_598_986, (0, 723, 0)),
    "eager": ("f16", 464, 22_750_512, 1_336, 191_306_408, (2, 116, 2)),
    "attention_clip": ("f16", 144, 1_360, 458, 4_623, (0, 235, 0)),
}


@pytest.mark.parametrize("name", REFERENCE)
def test_the_published_numbers_are_found_again(shared_data, name):
    half, half_nan, half_repeats, single_nan, single_repeats, classes = REFERENCE[name]
    log = parse(shared_data / "nixnan" / f"claude_{name}.nixnan.gz")
    assert log.counts[half]["NaN"] == log.report[half]["NaN"]["unique"] == half_nan
    assert log.counts["f32"]["NaN"] == log.report["f32"]["NaN"]["unique"] == single_nan
    repeats = tuple(log.report[label]["NaN"]["repeats"] for label in (half, "f32"))
    assert repeats == (half_repeats, single_repeats)
    table = class_table(instructions(log))["NaN"]
    assert tuple(table[name] for name in ("birth", "transit", "source_only")) == classes
    assert memory_nan_lines(log) == 0 and verdict_of(log)[0] == "masked-intermediate"


def test_the_baselines_nan_lies_in_attention_and_gemm_not_in_the_quantized_product(shared_data):
    log = parse(shared_data / "nixnan" / "claude_baseline.nixnan.gz")
    rows = {
        row["short"]: (row["lines"], row["NaN"], row["nan_sites"])
        for row in function_rows(log, instructions(log))
    }
    assert rows["pytorch_flash::flash_fwd_kernel"] == (7_738, 5_415, 2_543)
    assert rows["cutlass::Kernel2"] == (2_246, 1_620, 272) and rows["kgemm_4bit_inference_naive"] == (
        80,
        0,
        0,
    )
    assert log.twins == {"__cuda_sm70_shflsync_down_p": "void kgemm_4bit_inference_naive"}


@pytest.mark.parametrize("name, jaccard", [("bfloat16", 0.228), ("eager", 0.144), ("attention_clip", 0.242)])
def test_sites_in_common_with_the_baseline(shared_data, name, jaccard):
    base, other = (parse(shared_data / "nixnan" / f"claude_{one}.nixnan.gz") for one in ("baseline", name))
    left, right = ({site.key for site in log.sites} for log in (base, other))
    assert round(len(left & right) / len(left | right), 3) == jaccard


def test_known_programs_give_the_causes_that_are_known(shared_data):
    def causes_of(name):
        log = parse(shared_data / "nixnan" / name)
        return verdict_of(log)[0], causes(instructions(log))

    _, torch = causes_of("h200_torch_half_overflow.nixnan.gz")
    assert torch[0]["cause"] == "inf - inf" and "FFMA" in torch[0]["raw"]
    assert any(row["cause"] == "division by zero" and row["benign"] for row in torch)
    verdict, model = causes_of("h200_mistral_eager_overflow.nixnan.gz")
    assert verdict == "stored"
    assert any(row["cause"] == "perhaps inf - inf" and row["confidence"] == "medium" for row in model)
    _, eager = causes_of("claude_eager.nixnan.gz")
    row = next(row for row in eager if row["cause"] == "inf - inf")
    assert row["benign"] and "FADD R2, -R7, R2" in row["raw"]
