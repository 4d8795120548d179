"""Which rank keeps the others waiting, and why."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lab.recordings.pairing import Pairs
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.workbooks.nodes import Nodes
from lab.rooms.sweep.gemm.workbooks.stragglers import (
    STRAGGLERS,
    straggler_findings,
    straggler_summary,
    straggler_verdict,
    stragglers,
)

pytestmark = pytest.mark.filterwarnings("error")  # an empty mean would warn on every page


def ranks(**late: float) -> list[dict[str, float]]:
    usual = {
        "num_collectives": 48,
        "times_arrived_last": 0,
        "computation_time_ms": 47.0,
        "idle_time_ms": 2.5,
        "end_deviation_us": 0.0,
    }
    return [
        {**usual, "rank": 0, "times_arrived_last": 48, **late},
        *({**usual, "rank": r} for r in range(1, 8)),
    ]


@pytest.mark.parametrize(
    ("late", "verdict"),
    [
        ({"computation_time_ms": 34.8, "idle_time_ms": 102.1}, "starts later"),
        ({"computation_time_ms": 60.0, "idle_time_ms": 2.0}, "computes longer"),
        ({"times_arrived_last": 3, "end_deviation_us": 400.0}, "its link is slower"),
        ({"computation_time_ms": 46.0, "idle_time_ms": 2.0}, "arrives last without a cause"),
        ({"times_arrived_last": 3}, ""),
        ({"times_arrived_last": 6, "end_deviation_us": 40.0}, ""),
    ],
)
def test_a_straggler_is_named_with_the_evidence(late, verdict):
    rows = ranks(**late)
    assert straggler_verdict(rows[0], rows, 300.0).startswith(verdict)
    assert bool(verdict) == bool(straggler_verdict(rows[0], rows, 300.0))
    assert straggler_verdict(rows[0], rows[:1], 300.0) == ""


def named(last, collectives, of_ranks):
    """Whether a rank that was last so many times is named, without any other sign."""
    usual = {"computation_time_ms": 1.0, "idle_time_ms": 1.0, "end_deviation_us": 0.0}
    rows = [{**usual, "rank": rank, "num_collectives": collectives} for rank in range(of_ranks)]
    rows[0]["times_arrived_last"] = last
    return bool(straggler_verdict(rows[0], rows, 300.0))


@pytest.mark.parametrize(
    ("ranks", "collectives", "least"),
    [
        (2, 4, 3),  # 1.5 times as often as by chance: 3/4
        (4, 1000, 375),  # 3/8
        (8, 16, 3),  # 3/16
        (8, 1000, 188),
        (10, 100, 15),  # from 10 ranks on, 15 %
        (11, 100, 15),
        (64, 100, 15),
        (64, 1000, 150),
    ],
)
def test_a_straggler_is_last_notably_often(ranks, collectives, least):
    assert named(least, collectives, ranks) and named(collectives, collectives, ranks)
    assert not named(least - 1, collectives, ranks) and not named(0, collectives, ranks)


@pytest.mark.parametrize(
    ("latency_us", "limit_us"), [(0.0, 50.0), (300.0, 50.0), (500.0, 50.0), (510.0, 51.0), (4000.0, 400.0)]
)
def test_an_end_is_late_beyond_50_us_and_a_tenth_of_the_latency(latency_us, limit_us):
    for end_us, late in ((limit_us - 0.01, False), (limit_us, False), (limit_us + 0.01, True)):
        rows = ranks(times_arrived_last=0, end_deviation_us=end_us)
        verdict = straggler_verdict(rows[0], rows, latency_us)
        assert bool(verdict) is late and (not late or f"ends {end_us:.0f} µs after" in verdict)


def test_a_rank_without_collectives_or_alone_is_no_straggler():
    rows = ranks(num_collectives=0)
    assert straggler_verdict(rows[0], rows, 300.0) == ""
    rows = ranks(num_collectives=1, times_arrived_last=1)
    assert straggler_verdict(rows[0], rows, 300.0) and not straggler_verdict(rows[0], rows[:1], 300.0)


@pytest.mark.parametrize(
    ("more_comp_ms", "more_idle_ms", "cause"),
    [
        (0.0, 0.5, "starts later"),
        (-2.0, 0.5, "starts later"),
        (0.5, 1.0, "starts later"),
        (0.5, 0.5, "computes longer"),
        (0.5, 0.0, "computes longer"),
        (0.5, -9.0, "computes longer"),
        (0.0, 0.0, "arrives last without a cause"),
        (-0.5, 0.0, "arrives last without a cause"),
        (0.0, -0.5, "arrives last without a cause"),
    ],
)
def test_the_larger_excess_over_the_others_is_the_cause(more_comp_ms, more_idle_ms, cause):
    rows = ranks(computation_time_ms=47.0 + more_comp_ms, idle_time_ms=2.5 + more_idle_ms)
    assert straggler_verdict(rows[0], rows, 300.0).startswith(cause)


def test_the_others_are_measured_by_their_median_and_the_numbers_are_told():
    rows = ranks(computation_time_ms=50.25, idle_time_ms=30.5)[:4]
    for row, computes_ms, idle_ms in zip(rows[1:], (40.0, 48.0, 900.0), (1.0, 3.0, 700.0), strict=True):
        row.update(computation_time_ms=computes_ms, idle_time_ms=idle_ms)
    told = straggler_verdict(rows[0], rows, 300.0)
    assert told.startswith("starts later")
    assert "idle for 30.5 ms (others 3.0 ms)" in told and "computes 50.2 ms (others 48.0 ms)" in told


def matched(*calls, latencies_us=(), complete=()):
    """Pairs of calls, each rank -> (start, duration) in µs; complete are those of the ranks of the first."""
    collectives, instances = [], []
    for at, call in enumerate(calls):
        starts = {rank: start for rank, (start, _) in call.items()}
        alone = len(call) == 1
        collectives.append(
            {
                "collective_id": at,
                "complete": set(call) == set(calls[0]) or at in complete,
                "straggler_rank": -1 if alone else max(starts, key=starts.get),
                "first_rank": -1 if alone else min(starts, key=starts.get),
                "latency_us": latencies_us[at] if latencies_us else 300.0,
            }
        )
        instances += [
            {
                "rank": rank,
                "collective_id": at,
                "ts_ns": 1000 * start,
                "dur_ns": 1000 * dur,
                "wait_us": np.nan if alone else float(max(starts.values()) - start),
            }
            for rank, (start, dur) in call.items()
        ]
    columns = [
        {name: np.array([row[name] for row in rows]) for name in rows[0]} for rows in (collectives, instances)
    ]
    return Pairs(tuple(calls[0]), *map(Table, columns), {}, {}, ())


FIRST = {0: (1000, 100), 1: (1040, 60), 2: (1010, 110)}  # rank 2 ends 20 us late
SECOND = {0: (1200, 100), 1: (1260, 40), 2: (1230, 100)}  # 30 us
THIRD = {0: (1450, 50), 1: (1400, 100), 2: (1410, 160)}  # 70 us
TORN = {0: (1600, 100), 1: (1690, 10)}
ALONE = {0: (1800, 7)}


def summary(*calls, ranks=(0, 1, 2), num_devices=2, **more):
    tables = {rank: SimpleNamespace(num_devices=num_devices) for rank in ranks}
    rows = straggler_summary(matched(*calls, **more), tables, Nodes(tables)).to_dict("records")
    return dict(zip(ranks, rows, strict=True))


def test_who_was_last_or_first_and_who_waited_is_counted_over_complete_collectives():
    rows = summary(FIRST, SECOND, THIRD, TORN)
    assert [rows[rank]["rank"] for rank in rows] == [0, 1, 2]
    assert [one["num_collectives"] for one in rows.values()] == [3, 3, 3]
    assert [one["times_arrived_last"] for one in rows.values()] == [1, 2, 0]
    assert [one["times_arrived_first"] for one in rows.values()] == [2, 1, 0]
    assert [one["pct_arrived_last"] for one in rows.values()] == pytest.approx([100 / 3, 200 / 3, 0])
    assert [one["total_wait_time_us"] for one in rows.values()] == [100, 50, 100]
    assert [one["mean_wait_time_us"] for one in rows.values()] == pytest.approx([100 / 3, 50 / 3, 100 / 3])


def test_the_wait_that_a_rank_causes_is_that_of_the_others_in_the_complete_collectives_it_delays():
    rows = summary(FIRST, SECOND, THIRD, TORN)
    assert [one["caused_wait_time_us"] for one in rows.values()] == [90, 160, 0]


def test_the_time_in_collectives_includes_the_incomplete_ones():
    rows = summary(FIRST, SECOND, THIRD, TORN)
    assert [one["total_nccl_dur_us"] for one in rows.values()] == [350, 210, 370]


def test_an_end_is_measured_against_the_median_rank_and_its_median_counts():
    rows = summary(FIRST, SECOND, THIRD, TORN)
    assert [one["end_deviation_us"] for one in rows.values()] == [0, 0, 30]


def test_ranks_lie_on_hosts_by_their_number_of_gpus():
    assert [one["node_id"] for one in summary(FIRST).values()] == [0, 0, 1]


def test_a_collective_of_one_rank_alone_has_no_wait_and_no_straggler():
    rows = summary(FIRST, SECOND, THIRD, ALONE, complete=(3,))
    assert [one["num_collectives"] for one in rows.values()] == [4, 3, 3]
    assert rows[0]["total_wait_time_us"] == 100 and rows[0]["mean_wait_time_us"] == 25
    assert [one["end_deviation_us"] for one in rows.values()] == [0, 0, 30]


def test_a_rank_that_took_part_in_nothing_has_no_share():
    row = summary(FIRST, ranks=(0, 1, 2, 3))[3]
    assert row["num_collectives"] == row["times_arrived_last"] == row["total_nccl_dur_us"] == 0
    assert np.isnan(row["pct_arrived_last"]) and np.isnan(row["mean_wait_time_us"])
    assert row["total_wait_time_us"] == row["caused_wait_time_us"] == row["end_deviation_us"] == 0


def test_a_rank_that_only_met_incomplete_collectives_causes_and_counts_nothing():
    calls = (FIRST, {1: (1300, 10), 3: (1390, 10)})
    row = summary(*calls, ranks=(0, 1, 2, 3))[3]
    assert row["num_collectives"] == 0 and row["total_nccl_dur_us"] == 10
    assert row["caused_wait_time_us"] == 0 and row["times_arrived_last"] == 0


def test_calls_that_could_not_be_matched_and_matches_without_calls_say_nothing_of_an_end():
    pairs = matched(FIRST, {3: (1300, 10)}, {0: (1500, 10), 1: (1500, 10)})
    calls = pairs.instances.as_dict()
    lost = Table(
        {**calls, "collective_id": np.where(calls["collective_id"] == 1, -1, calls["collective_id"])}
    )
    tables = {n: SimpleNamespace(num_devices=8) for n in range(4)}
    found = straggler_summary(Pairs(pairs.ranks, pairs.collectives, lost, {}, {}, ()), tables, Nodes(tables))
    assert found["end_deviation_us"].tolist() == [0, 0, 20, 0]
    assert found["num_collectives"].tolist() == [1, 1, 1, 0] and found["total_nccl_dur_us"].iloc[3] == 10


def rank(timeline):
    return SimpleNamespace(num_devices=8, figures=SimpleNamespace(timeline=timeline))


def test_the_table_has_a_row_per_configuration_and_rank_with_the_evidence_from_its_trace():
    busy = {"computation_time_ms": 10.0, "idle_time_ms": 1.0}
    late = {"computation_time_ms": 11.0, "idle_time_ms": 5.0}
    settings = {
        (256, 28, 1): {0: rank(busy), 1: rank(late), 2: rank(busy)},
        (512, 28, 2): {0: rank(None), 1: rank({"idle_time_ms": 7.0}), 2: rank(busy)},
    }
    pairs = {setting: matched(FIRST, SECOND, THIRD, TORN) for setting in settings}
    table = stragglers(SimpleNamespace(ranks=settings), pairs)
    assert list(table) == STRAGGLERS and len(table) == 6
    assert table["threads"].tolist() == [256] * 3 + [512] * 3
    assert table["channel"].tolist() == [28] * 6 and table["repeat"].tolist() == [1] * 3 + [2] * 3
    assert table["rank"].tolist() == [0, 1, 2] * 2
    np.testing.assert_array_equal(table["computation_time_ms"], [10, 11, 10, np.nan, np.nan, 10])
    np.testing.assert_array_equal(table["idle_time_ms"], [1, 5, 1, np.nan, 7, 1])
    assert [bool(verdict) for verdict in table["verdict"]] == [False, True, False] * 2
    assert "idle for 5.0 ms (others 1.0 ms)" in table["verdict"][1]


@pytest.mark.parametrize(("latencies_us", "late"), [((1, 200, 9000), True), ((1, 900, 901), False)])
def test_a_late_end_is_held_against_the_median_latency(latencies_us, late):
    calls = [{0: (at, 100), 1: (at + 5, 95), 2: (at - 5, 185)} for at in (1000, 2000, 3000)]
    pairs = {(256, 28, 1): matched(*calls, latencies_us=latencies_us)}
    table = stragglers(SimpleNamespace(ranks={(256, 28, 1): {n: rank(None) for n in range(3)}}), pairs)
    assert ("ends 80 µs after" in table["verdict"][2]) is late


def test_a_configuration_without_collectives_names_nobody():
    nothing = matched(FIRST)
    none = Pairs((), nothing.collectives.take([]), nothing.instances.take([]), {}, {}, ())
    table = stragglers(SimpleNamespace(ranks={(256, 28, 1): {0: rank(None)}}), {(256, 28, 1): none})
    assert table["verdict"].tolist() == [""] and table["num_collectives"].tolist() == [0]
    assert table["caused_wait_time_us"].tolist() == table["end_deviation_us"].tolist() == [0]


def test_a_finding_names_configuration_rank_and_count():
    rows = [(256, 28, 3, 1, 1, "computes longer: why"), (512, 42, 0, 0, 48, ""), (512, 0, 5, 6, 48, "late")]
    columns = ["threads", "channel", "rank", "times_arrived_last", "num_collectives", "verdict"]
    assert straggler_findings(pd.DataFrame(rows, columns=columns)) == [
        "256 threads, 28 channels: rank 3 arrives last in 1 of 1 collective; computes longer: why",
        "512 threads: rank 5 arrives last in 6 of 48 collectives; late",
    ]
