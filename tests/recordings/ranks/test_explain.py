"""What a repair gives: replays against the golden table, and the planted sets of the shared data."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from lab.recordings.kineto import read_kineto
from lab.recordings.ranks import Account, account_of, work_of
from lab.recordings.ranks.explain import explain, shares
from lab.recordings.ranks.explained import READY, READY_FREE, RECORDED, Explained
from tests.recordings.ranks.test_account import SWEEP, account_in, folder_of, golden_of

WANTED = {
    "base": set(),
    "clock": set(),
    "host_late": {(3, "host_late", True, (5,))},
    "slow_gemm": {(5, "slow_kernels", True, (5, 6))},
    "two": {
        (3, "host_late", True, (5,)),
        (5, "slow_kernels", False, (5,)),
        (5, "slow_kernels", True, (6,)),
    },
    "dropped": {(2, "missing", False, (5,))},
    "slow_link": {(6, "slow_link", True, (5, 6))},
}


@lru_cache(maxsize=1)
def _sweep(shared_data: Path) -> dict[str, Explained]:
    accounts: list[Account] = [account_in(folder_of(shared_data, name)) for name in SWEEP]
    return dict(zip(SWEEP, explain(accounts), strict=True))


@pytest.fixture
def sweep(shared_data) -> dict[str, Explained]:
    """The four settings, explained once for all tests: what crosses streams is learnt over all of them."""
    return _sweep(shared_data)


def lengths(one: Explained, step: int) -> dict[str, float]:
    return {row.change: row.length_ms for row in one.what_if if row.step == step}


@pytest.mark.data
@pytest.mark.parametrize("name", SWEEP)
def test_the_unchanged_replay_is_the_recording_within_100_us(shared_data, sweep, name):
    golden = golden_of(shared_data, name)["counterfactual"]
    assert sweep[name].withheld == ()
    for step in (5, 6):
        wanted = golden[str(step)]
        found = lengths(sweep[name], step)
        assert found[RECORDED] == pytest.approx(wanted["recorded_ms"], abs=0.1)
        recorded = [row.recorded_ms for row in sweep[name].what_if if row.step == step]
        assert recorded[0] == pytest.approx(wanted["recorded_ms"], abs=0.006)


@pytest.mark.data
@pytest.mark.parametrize("name", SWEEP)
def test_repaired_hosts_and_ready_hosts_give_the_golden_lengths(shared_data, sweep, name):
    golden = golden_of(shared_data, name)["counterfactual"]
    for step in (5, 6):
        wanted = golden[str(step)]
        found = lengths(sweep[name], step)
        repaired = [
            (row.ranks, row.length_ms) for row in sweep[name].what_if if row.step == step and row.ranks
        ]
        assert repaired == [
            (tuple(one["hosts_fixed"]), pytest.approx(one["step_ms"], abs=0.01))
            for one in wanted["fix_slowest_hosts"]
        ]
        assert found[READY] == pytest.approx(wanted["gpu_bound_ms"]["recorded_durations"], abs=0.03)
        # It rests on the medians of few free kernels (test_account): 1.5 %.
        assert found[READY_FREE] == pytest.approx(wanted["gpu_bound_ms"]["no_contention"], rel=0.015)
        for rank, ms in wanted["host_ms"].items():
            assert sweep[name].host_ms[step, int(rank)] == pytest.approx(ms, abs=0.006)


@pytest.mark.data
def test_the_critical_path_telescopes_to_the_step(sweep):
    for one in sweep.values():
        for step, pieces in one.path.items():
            begins = [piece.begin_ns for piece in pieces]
            ends = [piece.end_ns for piece in pieces]
            assert begins[0] == 0 and begins[1:] == ends[:-1]
            assert ends[-1] / 1e6 == pytest.approx(lengths(one, step)[RECORDED], abs=1e-6)
    parts = {kind: ns / 1e6 for rank, kind, ns in shares(sweep["256t_28ch"].path[5]) if rank == 1}
    assert parts["host"] == pytest.approx(73.8, abs=0.02) and parts["entered late"] == pytest.approx(
        6.2, abs=0.05
    )
    assert parts["compute"] == pytest.approx(0.16, abs=0.01)


@pytest.mark.data
@pytest.mark.parametrize("name", WANTED)
def test_planted_sets_are_named_as_planted_and_nobody_else(shared_data, name):
    (one,) = explain([account_in(folder_of(shared_data, name))])
    assert {(f.rank, f.cause, f.binding, f.steps) for f in one.findings} == WANTED[name]
    assert one.withheld == ()
    complete = 47 if name == "dropped" else 48
    assert (one.account.num_calls, one.account.num_complete) == (48, complete)


@pytest.mark.data
def test_a_larger_batch_is_more_work_and_not_more_kernels(shared_data):
    folder = shared_data / "cases/ranks/uneven_batch"
    works = {rank: work_of(read_kineto(folder / f"rank{rank}.json.gz")) for rank in range(4)}
    (one,) = explain([account_of(works)])
    (finding,) = one.findings
    assert (finding.rank, finding.cause, finding.binding) == (2, "more_work", True)
    assert 1.51 <= finding.saves_ms <= 1.61
    assert "as many kernels of larger shapes" in finding.text and "more kernels" not in finding.text


@pytest.mark.data
@pytest.mark.parametrize("case", ["moe_heavy", "moe_even"])
def test_no_repair_lengthens_a_step(shared_data, case):
    folder = shared_data / "cases/ranks" / case
    (one,) = explain([account_of({n: work_of(read_kineto(folder / f"rank{n}.json.gz")) for n in range(8)})])
    assert one.what_if and all(row.length_ms <= 1.002 * row.recorded_ms for row in one.what_if)
    given = {(row.step, row.change) for row in one.what_if}
    assert all("no repair lengthens a step" in text for text in one.withheld)
    assert len(given) + len(one.withheld) == 7 * len(one.steps)
