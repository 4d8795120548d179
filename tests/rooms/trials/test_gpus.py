"""Which GPU is named, and when nothing is: planted bits, times, errors and counters."""

from __future__ import annotations

import json
from types import SimpleNamespace

import msgspec
import pytest

pytest.importorskip("pandas")
from lab.core.gpu import Gpu
from lab.core.plan import Site
from lab.core.step import Outcome, Status
from lab.errors import UsageError
from lab.rooms.trials.gpus import VISIT, Check, GpusConfig, Visit, plan
from lab.rooms.trials.gpus_page import gather, judge, missing, sentences
from tests.command import lab
from tests.conftest import ROOT


def visit(
    uuid, number, *, bits="b", odd=0, ms=2.0, device="cuda", name="H200", error="", check_error="", **more
):
    values = tuple("x" if at < odd else bits for at in range(10))
    products = Check("matmul float32", values, (ms,) * 10)
    if check_error:
        products = Check("matmul float32", error=check_error)
    checks = () if error else (products, Check("integers", ("i",) * 10, (1.0,) * 10))
    more.setdefault("counters", {"ecc_uncorrectable": 0})
    return Visit(uuid, number, 0, name, device, "2.11", checks=checks, error=error, **more)


def visits(*gpus, times=3):
    return [visit(uuid, n, **given) for n in range(times) for uuid, given in gpus]


def kinds(finding):
    return {(one.uuid, one.kind) for one in finding.suspects}


def test_equal_gpus_are_no_suspects():
    seen = visits(*((f"GPU-{n}", {}) for n in range(8)))
    finding = judge(seen)
    assert not finding.suspects and not finding.open_pairs and len(finding.tested) == 8
    assert "8 GPUs agree in all bits" in sentences(finding, seen)[0]
    assert missing(finding, seen) == []


def test_a_visit_that_failed_leaves_what_the_other_visits_saw():
    seen = [*visits(("GPU-0", {}), ("GPU-1", {})), visit("GPU-1", 3, name="", error="timeout", counters={})]
    finding = judge(seen)
    assert {uuid for uuid, _ in kinds(finding)} == {"GPU-1"} and missing(finding, seen) == []


@pytest.mark.parametrize("status, accused", [("interrupted", False), ("timeout", True)])
def test_a_visit_that_a_person_ended_accuses_no_gpu(tmp_path, status, accused):
    gpus = tuple(Gpu(vendor="nvidia", index=index, uuid=f"GPU-{index}") for index in range(2))
    steps = plan(GpusConfig(rounds=2), Site(vendor="nvidia", gpus=gpus)).steps
    records = [SimpleNamespace(step=step, outcome=Outcome(status=Status.ok)) for step in steps]
    records[-1].outcome = Outcome(status=Status[status], reason="it ended")
    ended = str(steps[-1].labels["gpu"])
    for step in steps[:-1]:
        (tmp_path / step.folder).mkdir(parents=True)
        (tmp_path / step.folder / VISIT).write_bytes(msgspec.json.encode(visit("?", 9)))
    manifest = SimpleNamespace(steps=records)
    found, problems = gather(SimpleNamespace(manifest=manifest, folder=lambda step: tmp_path / step.folder))
    assert {uuid for uuid, _ in kinds(judge(found))} == ({ended} if accused else set())
    assert {seen.round for seen in found} == {0, 1}  # as planned, whatever the file says
    assert bool(problems) != accused


def test_one_gpu_with_other_bits_is_named_by_its_uuid():
    finding = judge(visits(("GPU-a", {}), ("GPU-b", {"bits": "bad"}), ("GPU-c", {})))
    assert kinds(finding) == {("GPU-b", "bits")}
    assert "differ from those of 2 equal GPUs" in finding.suspects[0].evidence


def test_a_gpu_that_does_not_repeat_itself_is_named_even_alone_or_among_two():
    seen = visits(("GPU-a", {"odd": 1}))
    assert (
        kinds(judge(seen)) == {("GPU-a", "itself")}
        and "compared with itself" in missing(judge(seen), seen)[0]
    )
    assert kinds(judge(visits(("GPU-a", {}), ("GPU-b", {"odd": 2})))) == {("GPU-b", "itself")}


def test_two_gpus_that_differ_are_said_and_neither_is_accused():
    finding = judge(visits(("GPU-a", {}), ("GPU-b", {"bits": "other"})))
    assert not finding.suspects and "which is wrong is open" in finding.open_pairs[0]


def test_a_slow_gpu_is_named_and_a_little_slower_one_is_not():
    finding = judge(visits(("GPU-a", {}), ("GPU-b", {"ms": 2.12}), ("GPU-c", {"ms": 2.05}), ("GPU-d", {})))
    assert kinds(finding) == {("GPU-b", "slower")}


def test_a_gpu_that_crashes_or_refuses_a_check_is_named():
    assert kinds(judge(visits(("GPU-a", {}), ("GPU-b", {"error": "ran past 300 s"})))) == {("GPU-b", "error")}
    finding = judge(visits(("GPU-a", {}), ("GPU-b", {"check_error": "illegal memory access"})))
    assert ("GPU-b", "error") in kinds(finding)


@pytest.mark.parametrize(
    ("more", "evidence"),
    [
        ({"counters": {"ecc_uncorrectable": 2, "ecc_correctable": 9}}, "2 uncorrectable ECC errors"),
        ({"counters": {"remap_pending": 1}}, "a row remapping that waits for a reset"),
        ({"counters": {"ecc_correctable": 9}}, None),
    ],
)
def test_counters_stand_beside(more, evidence):
    suspects = judge(visits(("GPU-a", more), ("GPU-b", {}))).suspects
    assert [s.evidence for s in suspects if s.uuid == "GPU-a"][:1] == ([evidence] if evidence else [])
    assert all(s.uuid == "GPU-a" and s.kind == "counters" for s in suspects)


@pytest.mark.parametrize(
    ("bits", "evidence"),
    [
        (0x44, ["a hardware thermal limit"]),
        (0x88, ["a hardware slowdown", "a power brake"]),
        (0x4, []),  # its power cap
    ],
)
def test_a_slowdown_that_no_load_explains_is_named(bits, evidence):
    suspects = judge(visits(("GPU-a", {}), ("GPU-b", {})), {"GPU-a": bits, "GPU-b": 0}).suspects
    assert [(s.uuid, s.kind, s.evidence) for s in suspects] == [
        ("GPU-a", "counters", text) for text in evidence
    ]


def test_counters_that_were_not_read_are_missing_and_not_healthy():
    seen = visits(("GPU-a", {}), ("GPU-b", {"counters": {}, "no_counters": "no NVML"}))
    assert missing(judge(seen), seen) == ["memory errors of GPU-b were not read: no NVML"]


def test_every_gpu_is_visited_once_a_round_in_an_order_of_the_rounds_own():
    gpus = tuple(Gpu(vendor="nvidia", index=n, uuid=f"GPU-{n}") for n in range(8))
    steps = plan(GpusConfig(rounds=4), Site(vendor="nvidia", gpus=gpus)).steps
    orders = [tuple(step.gpu for step in steps[8 * n : 8 * n + 8]) for n in range(4)]
    assert all(sorted(order) == sorted(gpu.uuid for gpu in gpus) for order in orders)
    assert len(set(orders)) == 4 and steps[0].num_gpus == 1
    with pytest.raises(UsageError):
        plan(GpusConfig(), Site(vendor="nvidia", gpus=gpus, resolved=False))


def test_gpus_of_two_kinds_are_not_compared_with_each_other():
    seen = visits(("GPU-a", {}), ("GPU-b", {}), ("GPU-c", {"name": "A100", "bits": "its own"}))
    assert not judge(seen).suspects and "A100" in missing(judge(seen), seen)[0]


def test_the_cpu_alone_is_no_gpu_tested():
    seen = visits(("cpu", {"device": "cpu", "name": "cpu"}))
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
