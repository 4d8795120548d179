"""`lab check`: its three outcomes and their exit codes, and what counts exactly."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from click.testing import CliRunner

from lab.compare.check import judge
from lab.compare.check.samples import Process
from lab.compare.cli import check
from lab.compare.whole import OWN
from lab.errors import BadDataError
from tests.compare.made import edited, layer, trace, with_loader, with_work_between


def processes(folder, count, scale=1.0, noise=0.002, seed=0, more=()):
    random.seed(seed)
    for number in range(count):
        own = scale * random.uniform(1 - noise, 1 + noise)
        steps = [layer(own) + layer(own)] * 3
        trace(folder / f"p{number}.json", steps, calls=[(step, name) for step in range(3) for name in more])
    return folder


def run(*words):
    return CliRunner().invoke(check, [str(word) for word in words])


def test_a_slowdown_is_proven_excluded_or_undecided_and_the_exit_code_says_which(tmp_path):
    base = processes(tmp_path / "base", 5)
    slow, same = processes(tmp_path / "slow", 5, 1.1, seed=1), processes(tmp_path / "same", 5, seed=2)
    noisy = processes(tmp_path / "noisy", 3, noise=0.2, seed=3)
    found = run(base, slow)
    assert (
        found.exit_code == 1
        and "proven" in found.stdout
        and "kernel time, mean: 0.110 ms -> 0.121 ms, +9.9" in found.stdout
    )
    assert run(base, same).exit_code == 0 and "is excluded" in run(base, same).stdout
    unclear = run(base, noisy)
    assert unclear.exit_code == 3 and "would decide" in unclear.stdout and "smallest change" in unclear.stdout
    assert run(base, slow, "--max-slowdown", "20%").exit_code == 0


def test_one_process_a_side_decides_nothing(tmp_path):
    found = run(processes(tmp_path / "a", 1), processes(tmp_path / "b", 1, 3.0))
    assert found.exit_code == 3 and "2 more processes per side at least" in found.stdout


def test_counts_that_changed_in_every_process_are_said_exactly(tmp_path):
    base = processes(tmp_path / "base", 4)
    head = processes(tmp_path / "head", 4, seed=2, more=("cudaDeviceSynchronize",))
    assert json.loads(run(base, head, "--json").stdout)["exact"] == ["cudaDeviceSynchronize: 0 -> 1 per step"]


@pytest.mark.parametrize("word", ["nan", "inf", "-1%", "-0.01", "two", "2"])
def test_a_limit_that_is_no_share_is_refused(tmp_path, word):
    base = processes(tmp_path / "base", 1)
    assert run(base, base, "--max-slowdown", word).exit_code == 2


def test_a_recording_without_steps_or_an_empty_folder_is_an_error(tmp_path):
    trace(tmp_path / "a" / "p.json", [layer()], prefix="nothing ")
    (tmp_path / "none").mkdir()
    assert "no step is marked" in str(run(tmp_path / "a", tmp_path / "a").exception)
    assert "no recording" in str(run(tmp_path / "none", tmp_path / "a").exception)


def step_times(folder, count, scale=1.0, noise=0.002, seed=0):
    random.seed(seed)
    folder.mkdir()
    for number in range(count):
        own = scale * random.uniform(1 - noise, 1 + noise)
        times = [10 * own * random.uniform(0.99, 1.01) for _ in range(40)]
        (folder / f"p{number}.json").write_text(json.dumps({"step_ms": times, "host": "any"}))
    return folder


def test_step_times_of_any_program_are_judged_as_one_metric(tmp_path):
    base, slow = step_times(tmp_path / "a", 5), step_times(tmp_path / "b", 5, 1.1, seed=1)
    found = json.loads(run(base, slow, "--json").stdout)
    metrics = {(one["name"], one["statistic"]): one for one in found["metrics"]}
    assert list(metrics) == [("step time", name) for name in ("mean", "median", "p95", "first step")]
    assert [one["outcome"] for one in metrics.values()] == [*["regression"] * 3, "apart"]
    assert {one["level"] for one in metrics.values()} == {1 - 0.01 / 3} and found["exact"] == []
    assert metrics["step time", "mean"]["change"] == pytest.approx(0.1, abs=0.01)
    assert run(base, step_times(tmp_path / "c", 5, seed=2)).exit_code == 0


@pytest.mark.parametrize(
    "text", ['{"step_ms": []}', '{"step_ms": [1, -2]}', '{"step_ms": [1e999]}', '{"step_ms": [1']
)
def test_step_times_that_are_none_are_an_error_and_no_sample(tmp_path, text):
    base = step_times(tmp_path / "a", 3)
    (base / "p3.json").write_text(text)
    assert isinstance(run(base, base).exception, BadDataError)


def test_recordings_and_step_times_have_no_metric_in_common(tmp_path):
    base = processes(tmp_path / "a", 3)
    found = run(base, step_times(tmp_path / "b", 3))
    assert isinstance(found.exception, BadDataError) and "no metric in common" in str(found.exception)


@pytest.mark.parametrize("plant", ["loader", "work"])
def test_what_stands_between_steps_is_no_all_clear(tmp_path, plant):
    """A data loader that makes every step 40 % longer, and as much GPU work outside the marked steps."""
    processes(tmp_path / "base", 4, seed=1)
    for file in sorted(processes(tmp_path / "head", 4, seed=2).iterdir()):
        if plant == "loader":
            edited(file, lambda events: with_loader(events, 400.0))
        else:
            edited(file, lambda events: with_work_between(events, range(2)))
    done = run(tmp_path / "base", tmp_path / "head", "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 3 and {one["outcome"] for one in found["metrics"]} == {"excluded", "apart"}
    (doubt,) = found["doubts"]
    words = {"loader": "is longer (+40.0%", "work": "0.0 µs on BASE and 250.0 µs on HEAD"}
    assert words[plant] in doubt


def test_a_data_loader_that_stalls_before_every_third_step_is_no_all_clear(tmp_path):
    for number in range(8):
        steps = [layer(1 + number * 1e-4)] * 9
        file = trace(tmp_path / ("base" if number % 2 else "head") / f"{number}.json", steps)
        if not number % 2:
            edited(file, lambda events: with_loader(events, 700.0, every=3))
    done = run(tmp_path / "base", tmp_path / "head", "--json")
    (doubt,) = json.loads(done.stdout)["doubts"]
    assert done.exit_code == 3 and "is longer (+20.0%" in doubt


def test_noise_between_steps_is_noted_and_no_doubt():
    """A slowdown beyond 2 % of the times of the GPU is excluded, and of the way between them nobody knows."""
    random.seed(5)
    base, head = (
        [
            Process({OWN: np.full(5, random.gauss(1, 0.001))}, period_ns=random.gauss(10, 0.8))
            for _ in range(6)
        ]
        for _ in range(2)
    )
    found = judge(base, head, 0.02)
    assert found.outcome == "excluded" and not found.doubts
    (note,) = found.notes
    assert "could be seen, and what runs between steps is in no metric" in note
    steady = [Process(one.steps_ns, period_ns=10.0 + 1e-6 * at) for at, one in enumerate(base)]
    assert judge(steady, steady[::-1], 0.02).notes == []


def test_of_equal_processes_with_noise_between_steps_few_are_doubted():
    random.seed(7)
    doubted = 0
    for _ in range(400):
        base, head = (
            [
                Process({OWN: np.full(5, random.gauss(1, 0.001))}, period_ns=random.gauss(10, 0.8))
                for _ in range(3)
            ]
            for _ in range(2)
        )
        doubted += bool(judge(base, head, 0.0).doubts)
    assert doubted <= 8  # 2 %; 0.5 % are intended
