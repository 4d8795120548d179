"""Planted truth: each effect is named with its size, and nothing else is."""

from __future__ import annotations

import pytest

from lab.recordings.ranks import account_of
from lab.recordings.ranks.explain import explain
from lab.recordings.ranks.explained import Explained, host_bound
from tests.recordings.ranks.made import GEMM_US, LAYERS, Job


def explained(job: Job) -> Explained:
    (found,) = explain([account_of(job.play())])
    return found


def named(one: Explained) -> set[tuple[int, str]]:
    return {(finding.rank, finding.cause) for finding in one.findings}


def cost_ms(one: Explained, rank: int, cause: str) -> float:
    found = [finding for finding in one.findings if (finding.rank, finding.cause) == (rank, cause)]
    assert found
    return sum(f.cost_ms * len(f.steps) for f in found) / sum(len(f.steps) for f in found)


def test_a_job_without_faults_names_nobody_and_replays_itself():
    one = explained(Job())
    assert one.findings == () and one.withheld == () and not any(c.corrected for c in one.account.clocks)
    assert one.account.num_calls == one.account.num_complete == 3 * LAYERS


@pytest.mark.parametrize("delay_ms", [4, 20, 80])
def test_a_late_host_is_named_with_its_delay(delay_ms):
    one = explained(Job(late={(3, 1): delay_ms}))
    assert named(one) == {(3, "host_late")}
    (finding,) = one.findings
    # What the host was ahead of its GPU before hides the first part of the delay.
    ahead_ms = 20 - cost_ms(explained(Job(late={(3, 1): 20})), 3, "host_late")
    assert finding.steps == (6,) and finding.binding
    assert finding.cost_ms + ahead_ms == pytest.approx(delay_ms, rel=0.1)


@pytest.mark.parametrize("count", [2, 10])
def test_more_kernels_are_more_work(count):
    one = explained(Job(extra={5: count}))
    assert named(one) == {(5, "more_work")}
    assert cost_ms(one, 5, "more_work") == pytest.approx(count * GEMM_US / 1e3, rel=0.1)
    assert f"{count} more kernels" in one.findings[0].text and one.findings[0].steps == (5, 6, 7)


@pytest.mark.parametrize("factor", [1.15, 1.3, 2.0])
def test_slower_kernels_are_named_with_their_factor(factor):
    one = explained(Job(slower={2: factor}))
    assert named(one) == {(2, "slow_kernels")}
    assert cost_ms(one, 2, "slow_kernels") == pytest.approx(LAYERS * GEMM_US * (factor - 1) / 1e3, rel=0.1)
    assert f"{factor:.2f} times as long" in one.findings[0].text


def test_a_slow_leave_is_a_link_and_no_clock():
    one = explained(Job(leaves_late={6: 400}))
    assert named(one) == {(6, "slow_link")} and not any(c.corrected for c in one.account.clocks)
    assert "after the others" in one.findings[0].text


@pytest.mark.parametrize(("clearly_late", "names"), [(1, set()), (4, {(6, "slow_link")})])
def test_a_link_is_named_where_late_leaves_are_most_of_the_excess(clearly_late, names):
    """Transfers take 8 ms; 0.7 ms later is within what ranks differ by, 1 ms is not."""
    late_us = {(6, layer): 1000.0 if layer < clearly_late else 700.0 for layer in range(LAYERS)}
    assert named(explained(Job(link=20, leaves_late=late_us))) == names


def test_more_copies_are_named():
    one = explained(Job(copies={4: 3.0}))
    assert named(one) == {(4, "copies")} and cost_ms(one, 4, "copies") == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("shift_ms", [0.5, -0.5, 3.3, -7, 50, -50])
def test_a_shifted_clock_is_measured_within_a_tenth_and_changes_no_part(shift_ms):
    usual, shifted = explained(Job()), explained(Job(clock={4: shift_ms}))
    assert shifted.findings == ()
    clocks = {clock.rank: clock for clock in shifted.account.clocks}
    assert [rank for rank, clock in clocks.items() if clock.corrected] == [4]
    assert clocks[4].offset_ns / 1e6 == pytest.approx(shift_ms, rel=0.1)
    assert clocks[4].low_ns <= clocks[4].offset_ns <= clocks[4].high_ns
    for before, after in zip(usual.account.rows, shifted.account.rows, strict=True):
        assert all(abs(before.parts[name] - after.parts[name]) < 50_000 for name in before.parts)


@pytest.mark.parametrize("dropped", [set(), {(2, 100), (3, 50)}])
def test_drift_is_measured_over_long_windows_and_not_claimed_over_short_ones(dropped):
    long = explained(Job(steps=60, gap_ms=200, drift={2: 50}, dropped=dropped))
    clock = next(clock for clock in long.account.clocks if clock.rank == 2)
    assert clock.corrected and clock.drift_ppm == pytest.approx(50, rel=0.1)
    assert [c.rank for c in long.account.clocks if c.drift_ppm] == [2]
    assert named(long) == {(rank, "missing") for rank, _ in dropped}
    assert long.account.num_calls == 60 * LAYERS
    short = explained(Job(drift={2: 50}))
    assert not any(clock.drift_ppm or clock.corrected for clock in short.account.clocks)


def test_dropped_calls_are_missing_and_shift_no_other():
    one = explained(Job(dropped={(2, 7), (5, 11)}, clock={5: 2.0}))
    assert named(one) == {(2, "missing"), (5, "missing")}
    assert (one.account.num_calls, one.account.num_complete) == (3 * LAYERS, 3 * LAYERS - 2)


def test_without_the_binding_rank_the_hidden_one_would_be_the_straggler():
    both = explained(Job(late={(7, step): 30 for step in range(3)}, late_layer=LAYERS - 1, slower={5: 1.2}))
    hidden = next(finding for finding in both.findings if finding.rank == 5)
    assert not hidden.binding and "until rank 7 is repaired" in hidden.text
    alone = explained(Job(slower={5: 1.2}))
    assert alone.findings[0].binding


@pytest.mark.parametrize("change", [{"slower": {2: 1.3, 5: 1.3}}, {"extra": {2: 4, 5: 4}}])
def test_ranks_that_are_equally_slow_hold_the_step_together(change):
    one = explained(Job(**change))
    assert {finding.rank for finding in one.findings} == {2, 5}
    for finding in one.findings:
        assert finding.binding and finding.saves_ms == pytest.approx(0.0, abs=0.1)
        assert "alone saves 0.0 ms a step, ranks 2 and 5 together" in finding.text
        together_ms = float(finding.text.partition("together ")[2].split()[0])
        assert together_ms == pytest.approx(finding.cost_ms, rel=0.1)


@pytest.mark.parametrize("layer_ms", [0.0, 1.8])
@pytest.mark.parametrize("ms", [3, 9])
def test_a_rank_that_enters_late_is_not_called_a_late_host_too(ms, layer_ms):
    one = explained(Job(entered={3: ms}, layer_ms=layer_ms))  # the others' hosts get ahead while they wait
    assert named(one) == {(3, "entered_late")}
    assert cost_ms(one, 3, "entered_late") == pytest.approx(ms, rel=0.1) and one.findings[0].steps == (5,)


def test_a_host_that_lingers_after_a_step_enters_the_next_one_late():
    one = explained(Job(tail={(3, 0): 20}))
    assert named(one) == {(3, "entered_late")}
    (finding,) = one.findings
    assert finding.steps == (6,) and finding.binding and finding.cost_ms == pytest.approx(20, rel=0.1)
    assert finding.saves_ms == pytest.approx(20, rel=0.1) and "enters step 6 late" in finding.text


def lengths_ms(one: Explained, step: int) -> dict[str, float]:
    return {row.change: row.length_ms for row in one.what_if if row.step == step}


@pytest.mark.parametrize("delay_ms", [8, 20])
def test_a_repaired_host_lets_those_go_on_that_waited_for_their_gpus(delay_ms):
    usual = explained(Job(waits_after=3))
    one = explained(Job(waits_after=3, late={(2, 1): delay_ms}))
    assert named(one) == {(2, "host_late")} and one.withheld == () and one.notes == ()
    (finding,) = one.findings
    assert finding.binding and finding.saves_ms == pytest.approx(finding.cost_ms, rel=0.1)
    without_ms = lengths_ms(usual, 6)["as recorded"]
    assert lengths_ms(one, 6)["host of rank 2 as the others'"] == pytest.approx(without_ms, abs=0.2)
    assert sum(piece.ns for piece in one.path[6]) / 1e6 == pytest.approx(lengths_ms(one, 6)["as recorded"])


def test_hosts_that_wait_for_their_gpus_are_not_called_the_bound():
    one = explained(Job(waits_after=LAYERS - 2))
    assert max(one.host_ms.values()) < 2 and host_bound(one) is None


def test_starts_that_nothing_explains_are_kept_and_said():
    one = explained(Job(stalls={(3, 1): 0.6}, late={(3, 1): 20}, late_layer=0))
    assert named(one) == {(3, "host_late")} and one.withheld == ()
    (note,) = one.notes
    assert (
        note.startswith("step 6: starts that nothing recorded explains")
        and "ms, for which a GPU idled" in note
    )
    assert one.findings[0].saves_ms == pytest.approx(one.findings[0].cost_ms, rel=0.1)


def test_a_gpu_that_mostly_idles_with_work_launched_gives_no_what_if():
    one = explained(Job(stalls={(0, 1): 3.0}))
    assert [row.step for row in one.what_if if row.change == "as recorded"] == [5, 7]
    (withheld,) = one.withheld
    assert "step 6: the replay of the unchanged recording is off" in withheld
