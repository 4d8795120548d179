"""Pipelines: who waits for whom, what a repair gives, and bubbles, against planted truth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.recordings.load import load_capture
from lab.recordings.ranks import account_of, work_of
from lab.recordings.ranks.explain import explain
from lab.recordings.ranks.explained import EVEN, RECORDED, Explained
from tests.simulator import pipeline
from tests.simulator.pipeline import Pipeline, gpipe, one_f_one_b, write_pipeline

NEAR = {"rel": 0.02, "abs": 0.02}


def explained_in(folder: Path) -> Explained:
    paths = sorted(folder.glob("**/*.json*"))
    works = [work_of(load_capture(path), number) for number, path in enumerate(paths)]
    return explain([account_of({work.rank: work for work in works})])[0]


def parts_ms(one: Explained, rank: int) -> dict[str, float]:
    rows = [row.parts for row in one.account.rows if row.rank == rank]
    sums = {
        name: sum(parts[f"{name}_ns"] for parts in rows) / 1e6 for name in ("compute", "transfer", "wait")
    }
    sums["compute"] += sum(parts["contention_ns"] for parts in rows) / 1e6
    return sums


def unpaired_ms(one: Explained) -> float:
    return sum(row.parts["unpaired_ns"] for row in one.account.rows) / 1e6


def saved_ms(one: Explained, rank: int) -> float:
    """By how much the repairs of one rank's causes shorten all steps together."""
    return sum((f.saves_ms or 0) * len(f.steps) for f in one.findings if f.rank == rank and f.binding)


JOBS = [
    Pipeline(),
    Pipeline(order=gpipe, slow={2: 1.3}),
    Pipeline(stages=2, batches=4, slow={1: 1.3}),
    Pipeline(stages=8, batches=12, slow={5: 1.4}, seed=3),
    Pipeline(buffered=True, slow={0: 1.25}),
    Pipeline(late_us={(1, 1): 9000}, between_us=22000),
    Pipeline(chunks=2, order=gpipe),
]


@pytest.mark.parametrize("job", JOBS)
def test_parts_of_simulated_pipelines_are_the_simulated_ones(tmp_path: Path, job: Pipeline) -> None:
    lanes = job.play()
    one = explained_in(write_pipeline(lanes, tmp_path))
    for lane in lanes:
        truth = {name: ns / 1e6 for name, ns in pipeline.parts_ns(lane).items()}
        assert parts_ms(one, lane.rank) == {name: pytest.approx(ms, **NEAR) for name, ms in truth.items()}
    assert unpaired_ms(one) == 0


@pytest.mark.parametrize("job", [job for job in JOBS if job.slow or job.late_us])
def test_a_repair_gives_what_the_simulation_without_the_fault_takes(tmp_path: Path, job: Pipeline) -> None:
    (rank,) = [*job.slow] or [stage for stage, _ in job.late_us]
    one = explained_in(write_pipeline(job.play(), tmp_path))
    healthy = Pipeline(**{**vars(job), "slow": {}, "late_us": {}})
    wanted = pipeline.step_ends_ns(job.play())[-1] - pipeline.step_ends_ns(healthy.play())[-1]
    assert {finding.rank for finding in one.findings} == {rank}
    assert saved_ms(one, rank) == pytest.approx(wanted / 1e6, rel=0.12)


@pytest.mark.parametrize("change", [{"skipped": {0: 3}}, {"skipped": {1: 2, 2: 5}}, {"clock_us": {1: 700.0}}])
def test_windows_that_begin_in_running_work_and_clocks_pair_from_the_end(
    tmp_path: Path, change: dict
) -> None:
    lanes = Pipeline(slow={2: 1.3}).play()
    one = explained_in(write_pipeline(lanes, tmp_path, **change))
    whole = explained_in(write_pipeline(lanes, tmp_path / "whole"))
    for step in (6, 7):
        for rank in range(4):
            row, wanted = one.account.row(step, rank), whole.account.row(step, rank)
            assert row is not None and wanted is not None
            assert row.parts["wait_ns"] == pytest.approx(wanted.parts["wait_ns"], rel=0.02, abs=20_000)
    assert [(f.rank, f.cause) for f in one.findings] == [(2, "slow_kernels")]


@pytest.mark.parametrize(
    ("job", "schedule"),
    [
        (Pipeline(order=gpipe), "GPipe"),
        (Pipeline(order=one_f_one_b), "1F1B"),
        (Pipeline(order=gpipe, chunks=2), "interleaved"),
    ],
)
def test_schedules_are_told_by_the_order_of_messages(tmp_path: Path, job: Pipeline, schedule: str) -> None:
    one = explained_in(write_pipeline(job.play(), tmp_path))
    assert [(p.ranks, p.schedule) for p in one.pipelines] == [((0, 1, 2, 3), schedule)]
    assert all(
        b.ns == one.account.row(b.step, b.rank).parts["wait_ns"]  # type: ignore[union-attr]
        for p in one.pipelines
        for b in p.bubbles
    )


def test_even_stages_give_a_shorter_step(tmp_path: Path) -> None:
    one = explained_in(write_pipeline(Pipeline(slow={2: 1.3}).play(), tmp_path))
    healthy = pipeline.step_ends_ns(Pipeline(forward_us=800 * 4.3 / 4).play())
    even, recorded = one.length_ms(EVEN), one.length_ms(RECORDED)
    assert even == pytest.approx((healthy[2] - healthy[1]) / 1e6, rel=0.02) and even < recorded  # type: ignore[operator]


def test_a_ring_waits_for_its_neighbour_and_is_no_pipeline(tmp_path: Path) -> None:
    lanes = pipeline.ring(4, 5, slow={2: 1.4})
    one = explained_in(write_pipeline(lanes, tmp_path))
    for lane in lanes:
        truth = {name: ns / 1e6 for name, ns in pipeline.parts_ns(lane).items()}
        assert parts_ms(one, lane.rank) == {name: pytest.approx(ms, **NEAR) for name, ms in truth.items()}
    assert not one.pipelines and {f.rank for f in one.findings} == {2}


@pytest.mark.data
@pytest.mark.parametrize(
    "case", ["pp2_slow", "pp4_slow", "pp4_slow_unnamed", "pp4_even", "pp4_late", "pp4_hosts_equal"]
)
def test_made_pipelines_come_out_as_planted(shared_data: Path, case: str) -> None:
    folder = shared_data / "cases/ranks"
    truth = json.loads((folder / "truth.json").read_text())[case]
    one = explained_in(folder / case)
    for rank, parts in truth["ranks"].items():
        assert parts_ms(one, int(rank)) == {name: pytest.approx(ms, **NEAR) for name, ms in parts.items()}
    assert [[f.rank, f.cause] for f in one.findings] == truth["findings"]
    low, high = truth.get("saves_ms", (0, 0))
    assert all(low - 0.3 <= (f.saves_ms or 0) <= high + 0.3 for f in one.findings)


@pytest.mark.data
def test_a_recorded_pipeline_names_its_slow_stage(shared_data: Path) -> None:
    """Stage 1 had 13 layers for 10; its repair took a step from 21.84 to 17.67 ms without the profiler."""
    one = explained_in(shared_data / "ranks/pipeline_h200/plain_slow1")
    assert [(f.rank, f.cause, f.binding) for f in one.findings] == [(1, "more_work", True)]
    assert one.findings[0].saves_ms == pytest.approx(4.17, rel=0.15)
    assert [(p.schedule, p.num_microbatches) for p in one.pipelines] == [("1F1B", 4)]
    parts = [row.parts for row in one.account.rows if row.rank == 0 and row.step > 3]
    assert all(7e6 < row["wait_ns"] < 10e6 and row["transfer_ns"] < 0.7e6 for row in parts)


@pytest.mark.data
def test_a_recorded_batch_of_sends_names_the_late_host(shared_data: Path) -> None:
    one = explained_in(shared_data / "ranks/pipeline_h200/batch_late0")
    assert [(f.rank, f.cause, f.binding) for f in one.findings] == [(0, "host_late", True)]
    assert [(p.schedule, p.num_microbatches) for p in one.pipelines] == [("1F1B", 4)]
