"""The same call on every rank, found."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.recordings import views
from lab.recordings.kineto import read_kineto
from lab.recordings.pairing import Pairs, pair_collectives
from lab.recordings.tables import Table
from tests.recordings.pairing.made import US, call, table


def meeting(
    starts_us: list[float], truth: int, transfer_us: float = 100.0, **more: Any
) -> list[dict[str, Any]]:
    """One blocking collective: all end together, `transfer_us` after the last has come."""
    end = max(starts_us) + transfer_us
    return [call(truth, start, end - start, **more) for start in starts_us]


def as_tables(
    calls: list[list[dict[str, Any]]], drop: set[tuple[int, int]] = frozenset()
) -> dict[int, Table]:
    num_ranks = max(map(len, calls), default=0)
    return {
        rank: table([one[rank] for one in calls if (rank, one[rank]["row"]) not in drop])
        for rank in range(num_ranks)
    }


def by_rank(pairs: Pairs, column: str) -> np.ndarray:
    """A column of `instances` (collectives, ranks); NaN where a rank has no row."""
    rows = pd.DataFrame(pairs.instances.as_dict())
    grid = rows[rows["collective_id"] >= 0].pivot(index="collective_id", columns="rank", values=column)
    return grid.reindex(columns=pairs.ranks).to_numpy(dtype=float)


def sets(pairs: Pairs) -> set[frozenset[tuple[int, int]]]:
    """The calls as sets of (rank, row)."""
    found = defaultdict(set)
    rows = pairs.instances
    for number, rank, row in zip(
        rows.collective_id.tolist(), rows.rank.tolist(), rows.row.tolist(), strict=True
    ):
        found[number].add((rank, row))
    return {frozenset(members) for members in found.values()}


@st.composite
def runs(draw: Any) -> tuple[list[list[dict[str, Any]]], set[tuple[int, int]]]:
    """Collectives of 2-4 ranks one after the other, and some (rank, row) that were not recorded."""
    num_ranks, num_calls = draw(st.integers(2, 4)), draw(st.integers(1, 12))
    at, calls = 0.0, []
    for truth in range(num_calls):
        late = draw(st.lists(st.integers(0, 400), min_size=num_ranks, max_size=num_ranks))
        name = draw(st.sampled_from(["allreduce", "_allgather_base"]))
        calls.append(meeting([at + x for x in late], truth, draw(st.integers(60, 300)), collective=name))
        at = max(row["ts_ns"] + row["dur_ns"] for row in calls[-1]) / US + draw(st.integers(60, 300))
    every = [(rank, truth) for rank in range(num_ranks) for truth in range(num_calls)]
    return calls, set(draw(st.lists(st.sampled_from(every), max_size=4)))


@settings(max_examples=80)
@given(runs())
def test_lost_collectives_shift_no_other_one(run):
    calls, drop = run
    pairs = pair_collectives(as_tables(calls, drop))
    truth = defaultdict(set)
    for one in calls:
        for rank, row in enumerate(one):
            if (rank, row["row"]) not in drop:
                truth[row["row"]].add((rank, row["row"]))
    assert sets(pairs) == {frozenset(members) for members in truth.values() if members}


@settings(max_examples=30)
@given(runs())
def test_figures_equal_those_of_plain_loops(run):
    calls, drop = run
    pairs = pair_collectives(as_tables(calls, drop))
    rows, found = pd.DataFrame(pairs.instances.as_dict()), pd.DataFrame(pairs.collectives.as_dict())
    for number, group in rows.groupby("collective_id"):
        one = found.iloc[number]
        starts = {row.rank: row.ts_ns for row in group.itertuples()}
        ends = [row.ts_ns + row.dur_ns for row in group.itertuples()]
        last = max(starts.values())
        assert one.ts_ns == min(starts.values()) and one.latency_us == group.dur_ns.min() / US
        assert group.wait_us.tolist() == [(last - start) / US for start in starts.values()]
        assert one.num_ranks == len(starts)
        if len(starts) < 2:
            assert np.isnan(one.start_skew_us) and one.straggler_rank == -1 == one.first_rank
            continue
        assert one.start_skew_us == (last - min(starts.values())) / US
        assert one.end_skew_us == (max(ends) - min(ends)) / US
        assert one.straggler_rank == min(rank for rank, start in starts.items() if start == last)
        assert one.first_rank == min(rank for rank, start in starts.items() if start == min(starts.values()))


@settings(max_examples=30)
@given(runs(), st.permutations(range(12)))
def test_sequence_numbers_pair_whatever_the_times_say(run, shuffled):
    calls, drop = run
    for one in calls:
        for rank, row in enumerate(one):
            row["seq"] = 100 + row["row"]
            row["ts_ns"] = 10**9 * shuffled[rank] + row["ts_ns"]  # clocks seconds apart
    pairs = pair_collectives(as_tables(calls, drop))
    assert all(len({row for _, row in members}) == 1 for members in sets(pairs))
    assert set(pairs.collectives.confidence) <= {"seq"}


def test_deviations_of_one_host_are_shown_and_not_corrected():
    calls = [meeting([at, at + 30], n) for n, at in enumerate(range(0, 20_000, 1000))]
    for one in calls:
        one[1]["ts_ns"] += 23_000
    pairs = pair_collectives(as_tables(calls))
    assert pairs.offsets_ns == {0: 0, 1: 0} and pairs.clocks[1].offset_ns == 23_000


def test_windows_that_hold_the_same_calls_one_later_are_not_paired_by_order():
    calls = [meeting([at + 97 * (n % 5), at], n) for n, at in enumerate(range(0, 20_000, 1000))]
    drop = {(0, 0), (1, 19)}  # equal lists, but of other calls
    pairs = pair_collectives(as_tables(calls, drop))
    assert all(len({row for _, row in members}) == 1 for members in sets(pairs))
    assert pairs.collectives.complete.sum() == 0 and (pairs.collectives.num_ranks == 2).sum() == 18
    assert set(pairs.collectives.confidence) == {"lcs"}


def test_missing_ranks_are_listed_and_the_rest_is_paired():
    calls = [meeting([0.0, 1.0, 2.0], 0), meeting([900.0, 901.0, 905.0], 1)]
    pairs = pair_collectives(as_tables(calls, {(1, 1)}))
    assert pairs.collectives.missing_ranks.tolist() == ["3", "1, 3"]
    assert not pairs.collectives.complete.any() and pairs.collectives.num_ranks.tolist() == [3, 2]
    assert "2 of 2 collectives are incomplete" in pairs.problems[0]


def test_groups_of_one_name_and_other_ranks_stay_apart():
    halves = {"[0, 1]": (0, 1), "[2, 3]": (2, 3)}
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for text, members in halves.items():
        for rank, row in zip(members, meeting([0.0, 5.0], 0, pg_ranks=text, group_size=2), strict=True):
            rows[rank].append(row)
    pairs = pair_collectives({rank: table(found) for rank, found in rows.items()})
    assert sets(pairs) == {frozenset({(0, 0), (1, 0)}), frozenset({(2, 0), (3, 0)})}
    assert pairs.collectives.complete.all() and pairs.collectives.index_in_group.tolist() == [0, 0]


def test_without_metadata_streams_pair_and_say_how_sure_they_are():
    blank = {
        "pg_name": "",
        "pg_ranks": "",
        "collective": "",
        "in_nelems": -1,
        "group_size": -1,
        "msg_bytes": -1,
    }
    calls = [meeting([0.0, 5.0], 0, **blank), meeting([500.0, 505.0], 1, **blank)]
    calls[0][1]["stream"] = calls[1][1]["stream"] = 33  # the same stream has another number there
    pairs = pair_collectives(as_tables(calls))
    assert pairs.collectives.confidence.tolist() == ["stream"] * 2
    assert (
        pairs.collectives.num_ranks.tolist() == [2, 2]
        and pairs.collectives.kind.tolist() == ["all_reduce"] * 2
    )
    assert np.isnan(pairs.collectives.algbw_gb_s).all() and "no metadata" in pairs.problems[0]


def test_no_ranks_and_ranks_without_collectives_give_empty_tables():
    assert len(pair_collectives({}).collectives) == 0
    pairs = pair_collectives({0: table([]), 1: table([])})
    assert (len(pairs.collectives), len(pairs.instances), pairs.problems) == (0, 0, ())
    lone = pair_collectives({0: table([]), 1: table([call(0, 1, 2)])})
    assert lone.collectives.missing_ranks.tolist() == ["0, 2, 3"]


def test_bandwidth_is_bytes_over_the_shortest_time_in_units_of_1e9():
    rows = meeting([0.0, 50.0], 0, transfer_us=10.0, msg_bytes=4_000_000, group_size=2, pg_ranks="[0, 1]")
    found = pair_collectives(as_tables([rows])).collectives
    assert (found.latency_us[0], found.algbw_gb_s[0], found.busbw_gb_s[0]) == (10.0, 400.0, 400.0)


# Start skew mean and max, end skew mean (us) and who came last how often: sweep sheet, section 9.
H200 = {
    "256thread/nccl_28channels": (2790.6, 6916.6, 60.5, {1: 48}),
    "256thread/nccl_42channels": (2270.4, 6917.4, 41.4, {5: 14, 2: 21, 7: 13}),
    "512thread/nccl_28channels": (2355.4, 6877.9, 53.6, {6: 10, 5: 22, 0: 16}),
    "512thread/nccl_42channels": (2634.6, 7243.6, 36.7, {0: 48}),
}


@pytest.mark.data
@pytest.mark.parametrize("config", H200)
def test_the_h200_sweep_gives_its_golden_skews_and_stragglers(shared_data, config):
    place = shared_data / "sweep_h200" / config / "torch_profiler"
    ranks = {
        rank: views.collective_instances(read_kineto(place / f"rank{rank}/trace_step7.json.gz"))
        for rank in range(8)
    }
    pairs = pair_collectives(ranks)
    found = pairs.collectives
    assert len(found) == 48 and found.complete.all() and set(found.confidence) == {"order"}
    skews = (found.start_skew_us.mean(), found.start_skew_us.max(), found.end_skew_us.mean())
    assert skews == pytest.approx(H200[config][:3], abs=0.06)
    who, times = np.unique(found.straggler_rank, return_counts=True)
    assert dict(zip(who.tolist(), times.tolist(), strict=True)) == H200[config][3]
    assert set(pairs.offsets_ns.values()) == {0} and pairs.problems == ()

    ranks[3] = ranks[3].where(np.arange(len(ranks[3])) != 7)  # one lost collective
    del ranks[5]
    with_gaps = pair_collectives(ranks)
    assert len(with_gaps.collectives) == 48 and with_gaps.collectives.num_ranks.tolist().count(7) == 47
    assert set(with_gaps.collectives.missing_ranks) == {"5", "3, 5"}
    waits = by_rank(with_gaps, "ts_ns")[:, [0, 1, 2, 4, 5, 6]]
    assert np.array_equal(waits, by_rank(pairs, "ts_ns")[:, [0, 1, 2, 4, 6, 7]])


LOST = {"none": [], "middle": [17], "first": [0, 1], "last": [46, 47]}


@pytest.mark.data
@pytest.mark.parametrize("config", ["256thread/nccl_28channels", "512thread/nccl_28channels"])
def test_a_shifted_clock_and_lost_calls_invent_no_call(shared_data, config):
    place = shared_data / "sweep_h200" / config / "torch_profiler"
    ranks = {
        rank: views.collective_instances(read_kineto(place / f"rank{rank}/trace_step7.json.gz"))
        for rank in range(8)
    }
    truth = {(rank, int(row)): at for rank, rows in ranks.items() for at, row in enumerate(rows.row)}
    for shift_ms in (0.0, -0.5, 0.5, 2, -5, 7, 1000, -3.6e6):
        moved = {**ranks[4].as_dict(), "ts_ns": ranks[4].ts_ns + int(shift_ms * 1e6)}
        for lost in LOST.values():
            kept = Table(moved).where(~np.isin(np.arange(48), lost))
            pairs = pair_collectives({**ranks, 4: kept})
            assert len(pairs.collectives) == 48
            assert int(pairs.collectives.complete.sum()) == 48 - len(lost)
            rows = pairs.instances
            found = defaultdict(set)
            for number, rank, row in zip(
                rows.collective_id.tolist(), rows.rank.tolist(), rows.row.tolist(), strict=True
            ):
                found[number].add(truth[rank, row])
            assert all(len(calls) == 1 for calls in found.values())
            assert pairs.clocks[4].offset_ns / 1e6 == pytest.approx(shift_ms, abs=0.03)


def test_ranks_of_different_hosts_share_their_hosts_clock():
    calls = [meeting([at, at + 30, at + 10, at + 20], n) for n, at in enumerate(range(0, 20_000, 1000))]
    for one in calls:
        for rank in (2, 3):
            one[rank]["ts_ns"] += 40_000  # within what one host shows
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    pairs = pair_collectives(as_tables(calls), hosts=hosts)
    moved = {clock.rank for clock in pairs.clocks if clock.corrected}
    assert moved == {2, 3} and len({pairs.offsets_ns[rank] for rank in moved}) == 1
    assert not any(clock.corrected for clock in pair_collectives(as_tables(calls)).clocks)


def test_a_clock_that_contradicts_itself_is_said():
    calls = [meeting([at, at + 10], n) for n, at in enumerate(range(0, 20_000, 1000))]
    for n, one in enumerate(calls):
        one[1]["seq"] = one[0]["seq"] = n
        one[1]["ts_ns"] += 5_000_000 * (n % 2)  # every other call lies 5 ms off: no clock does that
    pairs = pair_collectives(as_tables(calls))
    assert not next(clock for clock in pairs.clocks if clock.rank == 1).plausible
    assert any("contradicts" in text for text in pairs.problems)


def test_two_ranks_that_exchange_in_a_larger_group_are_pairs():
    sends = [call(n, 1000 * n + 500, 50, collective="send" if n % 2 else "recv") for n in range(4)]
    takes = [call(n, 1000 * n + 505, 45, collective="recv" if n % 2 else "send") for n in range(4)]
    rows = {0: table(sends), 1: table(takes), 2: table([]), 3: table([])}
    pairs = pair_collectives(rows)
    assert sets(pairs) == {frozenset({(0, n), (1, n)}) for n in range(4)}
