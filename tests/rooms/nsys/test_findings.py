"""The room from a folder to its page: both layouts, cells that failed, and a real CPU run."""

from __future__ import annotations

import gzip
import json
import os

import pandas as pd
import pytest
from click.testing import CliRunner

from lab.core.step import Outcome, Status
from lab.errors import BadDataError, MissingError
from lab.recordings.load import load_capture
from lab.rooms import room, room_of
from lab.rooms.nsys.answers.cli import answers as answers_command
from lab.rooms.nsys.findings import analyse_nsys, merged, outcome_of, planned
from lab.rooms.nsys.layout import CellData, find_cells
from tests.command import lab
from tests.conftest import ROOT
from tests.rooms.nsys.made import truth, write_trace


def record(folder, kind, *, context=64, outcome="ok", twin=True, trace=True, reason=""):
    """A cell as the recorder leaves it."""
    home = folder / "captures" / f"tiny_ctx{context}_{kind}"
    home.mkdir(parents=True)
    asked = {"model_size": "tiny", "context_length": context, "profile_type": kind, "collector": "kineto"}
    step = {"forward_ms": 0.5, "step_ms": 0.8, "loss": 1.0}
    told = {
        "asked": asked,
        "outcome": outcome,
        "steps": [step],
        "reason": reason,
        "peak_allocated_bytes": 2**20,
    }
    (home / "cell.json").write_text(json.dumps(told))
    (home / "collector.json").write_text(json.dumps({"collector": "kineto", "reason": "no nsys here"}))
    if twin:
        (home / "unprofiled").mkdir()
        (home / "unprofiled" / "cell.json").write_text(
            json.dumps({**told, "asked": {**asked, "collector": "none"}})
        )
    if trace:
        write_trace(home / "capture.json.gz.plain", kind).rename(home / "capture.json.gz")
    return home


@pytest.fixture
def made(tmp_path):
    folder = tmp_path / "rec"
    for kind in ("forward", "forward_backward", "training"):
        record(folder, kind)
    record(
        folder, "training", context=128, outcome="oom", trace=False, reason="CUDA out of memory. Tried ..."
    )
    return folder


def quiet(_):
    return None


def csv(folder, name):
    return pd.read_csv(folder / "out" / "tables" / f"{name}.csv")


def test_a_folder_becomes_tables_figures_reports_a_summary_and_a_page(made, tmp_path):
    done = analyse_nsys(made, tmp_path / "out", None, quiet)
    assert all(path.is_file() and path.stat().st_size for path in done.files)
    assert done.status == "warn" and not done.lacking, "out of memory is a result, and a reservation"
    assert done.verdict[0] == "3 of 4 cells recorded by kineto (1 oom)."
    assert {sentence[:3] for sentence in done.verdict[1:6]} == {"(a)", "(b)", "(c)", "(d)", "(e)"}
    cells = pd.read_csv(tmp_path / "out" / "tables" / "cells.csv")
    assert list(cells["outcome"]) == ["ok", "ok", "ok", "oom"]
    overview = pd.read_csv(tmp_path / "out" / "tables" / "overview.csv").set_index("context")
    assert overview.loc[64, "training_matmul_percent"] == pytest.approx(100 * truth()["step_matmul"])
    assert (
        overview.loc[64, "softmax_over_qk"] == 1
        and overview.loc[128].isna().sum() == len(overview.columns) - 1
    )
    page = (tmp_path / "out" / "report.html").read_text()
    assert "no nsys here" in page, "who recorded, and why not nsys"
    assert "Tried ..." in page and "softmax" in page and page.count("<figure") == 1, "the phases"


def test_memory_that_ended_everywhere_is_still_a_result(tmp_path):
    record(tmp_path / "rec", "training", outcome="oom", trace=False, reason="CUDA out of memory")
    done = analyse_nsys(tmp_path / "rec", tmp_path / "out", None, quiet)
    assert (
        done.status == "warn"
        and not done.lacking
        and done.verdict == ["0 of 1 cells recorded by kineto (1 oom)."]
    )


def test_the_published_tree_has_reports_under_the_names_users_know(made, tmp_path):
    analyse_nsys(made, tmp_path / "out", None, quiet)
    tree = tmp_path / "out" / "results" / "nsight_profiles"
    names = {
        path.relative_to(tree / "stats_reports").as_posix() for path in tree.glob("stats_reports/*/*.csv")
    }
    assert {
        "part_a/tiny_forward_ctx64_cuda_gpu_kern_sum.csv",
        "part_b_c/tiny_forward_backward_annotated_ctx64_cuda_gpu_kern_sum.csv",
        "part_d/tiny_training_step_ctx64_nvtx_gpu_proj_sum.csv",
        "part_e/tiny_attention_analysis_ctx64_nvtx_kern_sum.csv",
    } <= names
    summary = (tree / "ANALYSIS_SUMMARY.txt").read_text()
    assert "(e) How do softmax" in summary and "[ok] one GEMM in every" in summary


def test_a_tree_that_others_recorded_is_recognised_and_read(tmp_path):
    tree = tmp_path / "results" / "nsight_profiles"
    write_trace(tree / "part_a" / "tiny_forward_ctx64.json", "forward")
    write_trace(tree / "part_d" / "tiny_training_step.json", "training")
    assert room_of(tmp_path) is room("nsys")
    done = analyse_nsys(tmp_path, tmp_path / "out", None, quiet)
    assert list(csv(tmp_path, "answers")["part"]) == ["a", "d"]
    assert {path.relative_to(tmp_path).parts[0] for path in done.files} == {"out"}


def test_a_capture_that_is_broken_is_a_row_and_the_others_are_analysed(made, tmp_path):
    (made / "captures" / "tiny_ctx64_forward" / "capture.json.gz").write_bytes(b"")
    done = analyse_nsys(made, tmp_path / "out", None, quiet)
    assert done.lacking == ["tiny ctx 64 forward: unreadable: the file is empty (0 bytes)"]
    problems = pd.read_csv(tmp_path / "out" / "tables" / "problems.csv")
    assert list(problems["file"]) == ["captures/tiny_ctx64_forward/capture.json.gz"]
    answers = csv(tmp_path, "answers")
    assert set(answers["part"][answers["state"] != "no answer"]) == {"b", "d"}


def test_a_capture_without_measured_steps_says_so(tmp_path):
    home = record(tmp_path / "rec", "forward", trace=False)
    write_trace(home / "capture.json.gz", "forward", steps=0)
    done = analyse_nsys(tmp_path / "rec", tmp_path / "out", None, quiet)
    assert "no range `step_N`" in done.lacking[0] and done.status == "fail"
    words = [str(home / "capture.json.gz"), "--out", str(tmp_path / "file" / "out")]
    assert CliRunner().invoke(answers_command, words).exit_code
    assert "no range `step_N`" in csv(tmp_path / "file", "problems")["what"][0]


def test_a_broken_cell_json_names_its_file(made):
    path = made / "captures" / "tiny_ctx64_forward" / "cell.json"
    path.write_text('{"asked": 3}')
    with pytest.raises(BadDataError) as caught:
        find_cells(made)
    assert caught.value.location == str(path)


def test_a_folder_without_captures_is_not_this_rooms(tmp_path):
    assert not room("nsys").recognises(tmp_path)
    with pytest.raises(MissingError):
        analyse_nsys(tmp_path, tmp_path / "out", None, quiet)


@pytest.mark.parametrize(
    ("step", "word"),
    [
        (None, "missing"),
        (Outcome(status=Status.failed, reason="exit code 7"), "failed"),
        (Outcome(status=Status.timeout, reason="ran past its limit"), "timeout"),
        (Outcome(status=Status.skipped, reason="skipped_estimate: 54.5 GB"), "skipped_estimate"),
        (Outcome(status=Status.ok), "failed"),
    ],
)
def test_a_cell_that_left_nothing_has_the_outcome_of_its_step(step, word):
    nothing = CellData(size="tiny", context=64, type="forward")
    outcome, reason = outcome_of(nothing, step, "")
    assert outcome == word and reason


def test_planned_cells_that_are_not_there_keep_their_place():
    wanted = [CellData(size="tiny", context=context, type="forward") for context in (64, 128, 256)]
    have = [wanted[2], CellData(size="small", context=64, type="training")]
    assert [one.name for one in merged(have, wanted)] == [
        "tiny_ctx64_forward",
        "tiny_ctx128_forward",
        "tiny_ctx256_forward",
        "small_ctx64_training",
    ]
    assert planned(None) == []


@pytest.mark.torch
def test_part_a_of_the_tiny_size_really_runs_on_this_cpu(tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    flags = "--gpus none --json nsys --part a --model-size tiny --context-length 32"
    flags += " --measure-steps 2 --warmup-steps 1"
    words = ["run", "-q", "-o", str(tmp_path / "run"), *flags.split()]
    done = lab(*words, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["status"] == "warn" and "have no GPU kernels" in told["verdict"][1]
    cells = pd.read_csv(tmp_path / "run" / "tables" / "cells.csv")
    assert list(cells["outcome"]) == ["no_gpu_data"] and cells["plain_ms"][0] > 0 and cells["steps"][0] == 2
    capture = load_capture(next((tmp_path / "run").glob("captures/*/capture.json.gz")))
    ops = capture.text(capture.ranges.name_id).tolist()
    num_steps = 3  # one of warm-up
    assert ops.count("aten::mm") + ops.count("aten::bmm") == 19 * num_steps, "9 products a layer and the head"
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["versions"]["torch"]


def test_a_capture_of_nsys_on_an_h200_answers_with_every_check_held(tmp_path):
    # Made by `lab run nsys --model-size tiny --context-length 64 --profile-type forward --collector nsys
    # --measure-steps 2` on one H200 (nsys 2025.3.1, torch 2.11), as the recorder left it.
    packed = ROOT / "tests" / "rooms" / "nsys" / "recordings" / "tiny_ctx64_forward_h200.sqlite.gz"
    home = tmp_path / "rec" / "captures" / "tiny_ctx64_forward"
    home.mkdir(parents=True)
    (home / "capture.sqlite").write_bytes(gzip.decompress(packed.read_bytes()))
    asked = {"model_size": "tiny", "context_length": 64, "profile_type": "forward"}
    (home / "cell.json").write_text(json.dumps({"asked": asked, "outcome": "ok"}))
    analyse_nsys(tmp_path / "rec", tmp_path / "out", None, quiet)
    answers, checks = csv(tmp_path, "answers"), csv(tmp_path, "checks")
    assert list(answers["part"][answers["state"] != "no answer"]) == ["a", "b", "c", "e"]
    assert set(checks["state"]) == {"ok", "not checked"}
    assert list(checks["check"][checks["state"] == "not checked"]) == [
        "Python's clock around the range agrees with it"
    ]
    phases = csv(tmp_path, "phases").set_index("phase")
    assert phases.loc["forward", "matmuls"] == 19 and phases.loc["forward", "kernels"] == 118
    assert "H200" in (tmp_path / "out" / "tables" / "cells.csv").read_text()
