"""Which GPU is named, and when nothing is: planted bits, times, errors and counters."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pandas")
from lab.rooms.trials.gpus.config import Check, Visit, Visits
from lab.rooms.trials.gpus.judge import judge
from lab.rooms.trials.gpus.page import missing, sentences
from tests.command import lab
from tests.conftest import ROOT


def visit(uuid, number, *, bits="b", odd=0, ms=2.0, device="cuda", name="H200", error="", check_error=""):
    values = tuple("x" if at < odd else bits for at in range(10))
    checks = (
        Check("matmul float32", values, (ms,) * 10)
        if not check_error
        else Check("matmul float32", error=check_error),
        Check("integers", ("i",) * 10, (1.0,) * 10),
    )
    made = {
        "name": name,
        "device": device,
        "torch": "2.11",
        "checks": () if error else checks,
        "error": error,
    }
    return Visit(uuid, number, 0, **made)


def rounds(*gpus, times=3, **more):
    return [Visits(tuple(visit(uuid, n, **given) for uuid, given in gpus), **more) for n in range(times)]


def kinds(finding):
    return {(one.uuid, one.kind) for one in finding.suspects}


def test_equal_gpus_are_no_suspects():
    seen = rounds(*((f"GPU-{n}", {}) for n in range(8)), xids={})
    finding = judge(seen)
    assert not finding.suspects and not finding.open_pairs and len(finding.tested) == 8
    assert "8 GPUs agree in all bits" in sentences(finding, seen)[0]
    assert missing(finding, seen) == []


def test_one_gpu_with_other_bits_is_named_by_its_uuid():
    finding = judge(rounds(("GPU-a", {}), ("GPU-b", {"bits": "bad"}), ("GPU-c", {})))
    assert kinds(finding) == {("GPU-b", "bits")}
    assert "differ from those of 2 equal GPUs" in finding.suspects[0].evidence


def test_a_gpu_that_does_not_repeat_itself_is_named_even_alone_or_among_two():
    seen = rounds(("GPU-a", {"odd": 1}))
    assert (
        kinds(judge(seen)) == {("GPU-a", "itself")}
        and "compared with itself" in missing(judge(seen), seen)[0]
    )
    assert kinds(judge(rounds(("GPU-a", {}), ("GPU-b", {"odd": 2})))) == {("GPU-b", "itself")}


def test_two_gpus_that_differ_are_said_and_neither_is_accused():
    finding = judge(rounds(("GPU-a", {}), ("GPU-b", {"bits": "other"})))
    assert not finding.suspects and "which is wrong is open" in finding.open_pairs[0]


def test_a_slow_gpu_is_named_and_a_little_slower_one_is_not():
    finding = judge(rounds(("GPU-a", {}), ("GPU-b", {"ms": 2.4}), ("GPU-c", {"ms": 2.05}), ("GPU-d", {})))
    assert kinds(finding) == {("GPU-b", "slower")}


def test_a_gpu_that_crashes_or_refuses_a_check_is_named():
    assert kinds(judge(rounds(("GPU-a", {}), ("GPU-b", {"error": "ran past 300 s"})))) == {("GPU-b", "error")}
    finding = judge(rounds(("GPU-a", {}), ("GPU-b", {"check_error": "illegal memory access"})))
    assert ("GPU-b", "error") in kinds(finding)


def test_counters_and_xids_of_visited_gpus_stand_beside():
    more = {"health": {"GPU-a": {"ecc_uncorrectable": 2}, "GPU-other": {"remap_failed": 1}}}
    finding = judge(rounds(("GPU-a", {}), ("GPU-b", {}), xids={"GPU-b": ("79: off the bus",)}, **more))
    assert kinds(finding) == {("GPU-a", "counters"), ("GPU-b", "counters")}


def test_gpus_of_two_kinds_are_not_compared_with_each_other():
    seen = rounds(("GPU-a", {}), ("GPU-b", {}), ("GPU-c", {"name": "A100", "bits": "its own"}))
    assert not judge(seen).suspects and "A100" in missing(judge(seen), seen)[0]


def test_the_cpu_alone_is_no_gpu_tested():
    seen = rounds(("cpu", {"device": "cpu", "name": "cpu"}))
    finding = judge(seen)
    assert finding.tested == [] and sentences(finding, seen)[0].startswith("No GPU was tested")
    assert any("no GPU was tested" in text for text in missing(finding, seen))


@pytest.mark.torch
def test_on_a_machine_without_gpus_the_run_ends_with_1_and_says_so(tmp_path):
    pytest.importorskip("torch")
    words = ["run", "-q", "-o", "out", "--gpus", "none", "trials", "-n", "1", "--json", "gpus"]
    done = lab(*words, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    answer = json.loads(done.stdout)
    assert done.returncode == 1 and answer["tested"] == [] and answer["status"] == "fail", done.stderr
    assert "no GPU was tested" in done.stderr


def test_other_flags_of_trials_are_refused(tmp_path, capsys, monkeypatch):
    from lab.cli.main import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        main(["run", "trials", "--cell", "tf32_off", "gpus"])
    assert error.value.code == 2 and "-n (rounds)" in capsys.readouterr().err
