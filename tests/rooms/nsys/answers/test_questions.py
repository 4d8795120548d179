"""Questions a to e."""

from __future__ import annotations

import dataclasses
import gzip
import json

import numpy as np
import pytest
from msgspec.structs import replace

from lab.perfmodel.boards import board_of
from lab.rooms.nsys.analyze import with_tables
from lab.rooms.nsys.answers.answer import FAILED, OK, OPEN
from lab.rooms.nsys.answers.questions import answers_of, brief, part_a, part_b, part_c, part_d, part_e
from lab.rooms.nsys.flops import SIZES
from tests.rooms.nsys import made
from tests.rooms.nsys.answers.cells import cell, states, told, wall_ms
from tests.rooms.nsys.answers.test_cli import asked_of
from tests.rooms.nsys.made import SPEC, truth


def test_a_two_clocks_that_agree_are_said_to_within_their_difference(tmp_path):
    wall = wall_ms(cell(tmp_path, "forward"))
    answer = part_a(cell(tmp_path, "forward", python_ms=wall * 1.01, plain_ms=wall / 1.02), [])
    assert "they agree within 2.0 %" in answer.sentence and answer.state == OK
    assert answer.values["overhead_percent"] == pytest.approx(2)


def test_a_an_interval_covers_the_steps_of_two_processes_and_claims_no_cause(tmp_path):
    wall = wall_ms(cell(tmp_path, "forward"))
    answer = part_a(cell(tmp_path, "forward", plain_ms=wall / 1.5), [])
    assert "under the profiler 50 % longer (one step has no interval)" in answer.sentence
    assert "how much of it the profiler adds is unknown" in answer.sentence
    noisy = told("forward", wall, wall * 0.2)  # 0.6 of the range, give or take as much
    doubtful = cell(tmp_path, "forward", plain_ms=wall)
    doubtful = replace(doubtful, twin=noisy)
    assert "+67 %, within the noise of the steps" in part_a(doubtful, []).sentence
    near = told("forward", *(wall * np.array([0.98, 0.7, 1.3])))
    near = replace(doubtful, twin=near)
    assert "+1 %, within the noise of the steps" in part_a(near, []).sentence
    faster = part_a(cell(tmp_path, "forward", plain_ms=wall * 1.5), [])
    assert "under the profiler 33 % shorter" in faster.sentence
    steady = told("forward", *(wall * np.array([0.5, 0.51])))
    slow = replace(doubtful, twin=steady)
    answer = part_a(slow, [])
    assert "95 % interval of the steps within these two processes" in answer.sentence
    assert (
        answer.values["steps_low_percent"]
        < answer.values["overhead_percent"]
        < answer.values["steps_high_percent"]
    )
    assert not {name for name in answer.values if name.startswith("overhead_") and name[9:] != "percent"}


def test_a_a_clock_in_the_same_run_that_disagrees_fails_its_check(tmp_path):
    wall = wall_ms(cell(tmp_path, "forward"))
    answer = part_a(cell(tmp_path, "forward", python_ms=3 * wall, plain_ms=wall), [])
    assert answer.state == FAILED


def test_a_one_interrupted_step_does_not_decide_about_the_clocks(tmp_path):
    one = cell(tmp_path, "forward", steps=3)
    walls = np.full(3, wall_ms(one))
    late = replace(one, result=told("forward", *(walls * [1, 9, 1])))
    assert states(part_a(late, []))["Python's clock around the range agrees with it"] == OK
    few = replace(one, result=told("forward", walls[0]))
    assert states(part_a(few, []))["Python's clock around the range agrees with it"] == OPEN


def test_b_the_costliest_kernel_has_its_launches_in_one_pass_not_in_the_whole_run(tmp_path):
    answer = part_b(cell(tmp_path, "forward_backward", steps=5), [])
    assert answer.values["launches"] == SPEC.forward_gemms
    assert answer.values["both_launches"] == 3 * SPEC.forward_gemms
    assert answer.values["ms"] == pytest.approx(SPEC.forward_gemms * made.GEMM_US / 1e3)
    assert answer.state == OK and f"{SPEC.forward_gemms} launches per pass" in answer.sentence


def test_b_launches_that_do_not_divide_into_passes_fail_the_check(tmp_path):
    answer = part_b(cell(tmp_path, "forward", extra_gemm=True), [])
    assert states(answer)["launches per pass are the same in every step"] == FAILED
    gemms, every = SPEC.forward_gemms, truth()["forward_kernels"]
    assert answer.checks[0].actual == f"by step: {gemms} of {every}, {gemms + 1} of {every + 1}"
    assert states(answer)["GEMMs of forward are the model's"] == FAILED
    assert "on average" in answer.sentence


def test_b_another_model_than_the_one_named_is_noticed(tmp_path):
    answer = part_b(cell(tmp_path, spec=SIZES["small"]), [])
    assert states(answer)["GEMMs of forward are the model's"] == FAILED
    unknown = part_b(cell(tmp_path, spec=None), [])
    assert states(unknown)["GEMMs of backward are the model's"] == OPEN and unknown.state == OK


def test_c_classes_add_up_and_products_are_not_among_them(tmp_path):
    answer = part_c(cell(tmp_path, "forward"), [])
    assert answer.values["not_matmul_percent"] == pytest.approx(100 * (1 - truth()["forward_matmul"]))
    assert "gemm_percent" not in answer.values and "splitk_reduce_percent" in answer.values
    assert answer.state == OK


def test_d_inference_and_training_are_compared_with_backward_owned(tmp_path):
    inference, training = cell(tmp_path, "forward"), cell(tmp_path, "training")
    answer = part_d(training, [inference])
    due = truth()
    assert answer.values["inference_matmul_percent"] == pytest.approx(100 * due["forward_matmul"])
    assert answer.values["step_matmul_percent"] == pytest.approx(100 * due["step_matmul"])
    lost = due["backward_kernels"] - 1  # the unit gradient is launched by the caller
    assert f"{lost} operations per step" in answer.sentence and answer.state == OK


def test_d_a_backward_pass_on_the_callers_thread_needs_no_search(tmp_path):
    answer = part_d(cell(tmp_path, "training", worker=False), [])
    assert "launching thread alone" not in answer.sentence
    assert states(answer)["forward multiplies as often as inference"] == OPEN


def test_d_an_inference_of_another_size_fails_the_check(tmp_path):
    other = cell(tmp_path, "forward", spec=SPEC, extra_gemm=True)
    assert (
        states(part_d(cell(tmp_path, "training"), [other]))["forward multiplies as often as inference"]
        == FAILED
    )


def test_e_softmax_is_all_of_its_range_and_qk_its_gemm_alone(tmp_path):
    answer = part_e(cell(tmp_path, "forward"), [])
    assert answer.values["computing_softmax_us"] == 5 * made.OTHER_US
    assert answer.values["qk_gemm_us"] == made.GEMM_US != answer.values["computing_attention_scores_us"]
    assert answer.values["flop_ratio"] == pytest.approx(2 * SPEC.d_head / 5)
    assert answer.state == OK


def test_what_the_data_cannot_answer_is_said_and_not_guessed(tmp_path):
    nothing = cell(tmp_path, kernels=False)
    for part in (part_b, part_c, part_d, part_e):
        answer = part(nothing, [])
        assert not answer.is_answered and "no_gpu_data" in answer.sentence and answer.state == "no answer"
    assert not part_d(cell(tmp_path, "forward"), []).is_answered


def test_means_over_steps_carry_their_interval(tmp_path):
    """Two steps whose forward differs by one GEMM of 20 us: t(0.05, 1 df) = 12.706."""
    one = cell(tmp_path, "forward", extra_gemm=True)
    values = part_b(one, []).values
    half = 12.7062 * (made.GEMM_US / 2) / 1e3
    assert values["kernel_low_ms"] == pytest.approx(values["ms"] - half, rel=1e-4)
    assert values["kernel_high_ms"] == pytest.approx(values["ms"] + half, rel=1e-4)
    steady = cell(tmp_path, "training", steps=3)
    found = part_d(steady, []).values
    assert found["step_low_ms"] == found["step_high_ms"] == pytest.approx(found["step_ms"])
    assert found["step_matmul_low_percent"] == pytest.approx(found["step_matmul_percent"])
    softmax = part_e(steady, []).values
    assert softmax["softmax_low_us"] == pytest.approx(softmax["computing_softmax_us"])
    single = cell(tmp_path, "forward", steps=1)
    assert not {name for name in part_b(single, []).values if "_low_" in name}, "one step has no interval"


def test_each_part_is_asked_of_the_captures_that_can_tell(tmp_path):
    def asked(kind):
        return [answer.part for answer in answers_of(cell(tmp_path, kind), [], "abcde")]

    assert asked("forward") == ["a", "b", "c", "e"]
    assert asked("training") == ["b", "d"] and asked("forward_backward") == ["b"]


def test_long_names_are_cut_in_a_sentence_and_keep_both_ends():
    tile = "tilesize64x64x8_stage3_warpsize1x4x1"
    name = f"sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_{tile}_ffma_execute_kernel__5x_cublas"
    assert len(brief(name)) == 56 and brief(name).startswith("sm80_xmma") and brief(name).endswith("cublas")
    assert brief("short") == "short"


@pytest.mark.data
def test_the_h200_recordings_answer_every_question_with_all_checks_held(shared_data, tmp_path):
    trace = shared_data / "kernels_h200" / "cs336_small_training.json.gz"
    done = asked_of(trace, "--model-size", "small", "--fused-qkv", "--json")
    rows = {row["part"]: row for row in json.loads(done.stdout)}
    assert {row["state"] for row in rows.values()} == {OK}
    assert rows["b"]["values"]["launches"] == 24 and round(rows["e"]["values"]["time_ratio"], 2) == 0.62
    export = tmp_path / "a.sqlite"
    export.write_bytes(
        gzip.decompress((shared_data / "nsys_h200" / "transformer_2layer.sqlite.gz").read_bytes())
    )
    rows = {row["part"]: row for row in json.loads(asked_of(export, "--json").stdout)}
    assert {row["state"] for row in rows.values()} == {OK} and round(
        rows["e"]["values"]["time_ratio"], 2
    ) == 0.51


@pytest.mark.parametrize(
    ("board", "dtype", "words"),
    [
        ("NVIDIA H200", "fp32", "% of the board's in fp32)"),
        ("NVIDIA H200", "tf32", "% of the board's in tf32)"),
        ("NVIDIA H200", "bf16", "% of the board's in bf16)"),
        ("a board of no sheet", "fp32", None),
    ],
)
def test_e_rates_stand_beside_what_the_board_can_do(tmp_path, board, dtype, words):
    forward = cell(tmp_path, "forward", python_ms=1.0)
    asked = replace(forward.result.asked, dtype=dtype)
    result = replace(forward.result, asked=asked, device={"name": board, "sm_count": 132})
    sentence = part_e(replace(forward, result=result), []).sentence
    assert words in sentence if words else "board's" not in sentence


@pytest.mark.parametrize(("context", "state"), [(64, OK), (64 * 1000, FAILED)])
def test_e_a_model_too_large_for_its_board_fails_the_check(tmp_path, context, state):
    forward = cell(tmp_path, "forward")
    recording = dataclasses.replace(forward.recording, board=board_of("NVIDIA H200"))
    wrong = with_tables(replace(forward, context=context), recording)
    assert states(part_e(wrong, []))["the GEMM of QK^T is not faster than its board"] == state
