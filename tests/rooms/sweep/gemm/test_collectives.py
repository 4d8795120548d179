"""Which rank keeps the others waiting, and why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lab.recordings.pairing import Pairs, pair_collectives
from lab.recordings.ranks.explained import Finding
from lab.recordings.tables import Table
from lab.rooms.sweep.gemm.collectives import Nodes, straggler_summary
from lab.rooms.sweep.gemm.steps import STRAGGLERS, stragglers
from lab.rooms.sweep.knobs import Key
from tests.recordings.pairing.made import call, table

pytestmark = pytest.mark.filterwarnings("error")  # an empty mean would warn on every page


def matched(*calls: dict[int, tuple[int, int]]) -> Pairs:
    """Pairs of calls, each rank -> (start, duration) in µs: of a group of three, or of one rank alone."""

    def of_rank(rank: int) -> list[dict[str, Any]]:
        return [
            call(n, *of_call[rank], seq=n, pg_ranks=str([0, 1, 2] if len(of_call) > 1 else [*of_call]))
            | {"group_size": 3 if len(of_call) > 1 else 1}
            for n, of_call in enumerate(calls)
            if rank in of_call
        ]

    ranks = sorted({rank for of_call in calls for rank in of_call})
    return pair_collectives({rank: table(of_rank(rank)) for rank in ranks})


FIRST = {0: (1000, 100), 1: (1040, 60), 2: (1010, 110)}  # rank 2 ends 20 us late
SECOND = {0: (1200, 100), 1: (1260, 40), 2: (1230, 100)}  # 30 us
THIRD = {0: (1450, 50), 1: (1400, 100), 2: (1410, 160)}  # 70 us
TORN = {0: (1600, 100), 1: (1690, 10)}
ALONE = {0: (1800, 7)}


def summary(*calls, ranks=(0, 1, 2)):
    tables = {rank: SimpleNamespace(num_devices=2) for rank in ranks}
    found = straggler_summary(matched(*calls), tables, Nodes(tables))
    return dict(zip(ranks, found.to_dict("records"), strict=True))


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


def test_an_end_is_measured_against_the_median_rank_and_its_median_counts():
    rows = summary(FIRST, SECOND, THIRD, TORN)
    assert [one["end_deviation_us"] for one in rows.values()] == [0, 0, 30]


def test_a_collective_of_one_rank_alone_has_no_wait_and_no_straggler():
    rows = summary(FIRST, SECOND, THIRD, ALONE)
    assert [one["num_collectives"] for one in rows.values()] == [4, 3, 3]
    assert rows[0]["total_wait_time_us"] == 100 and rows[0]["mean_wait_time_us"] == 25
    assert [one["end_deviation_us"] for one in rows.values()] == [0, 0, 30]


def test_a_rank_that_took_part_in_nothing_has_no_share():
    row = summary(FIRST, ranks=(0, 1, 2, 3))[3]
    assert row["num_collectives"] == row["times_arrived_last"] == row["total_nccl_dur_us"] == 0
    assert np.isnan(row["pct_arrived_last"]) and np.isnan(row["mean_wait_time_us"])
    assert row["total_wait_time_us"] == row["caused_wait_time_us"] == row["end_deviation_us"] == 0


def test_calls_that_could_not_be_matched_and_matches_without_calls_say_nothing_of_an_end():
    pairs = matched(FIRST, {3: (1300, 10)}, {0: (1500, 10), 1: (1500, 10)})
    calls = pairs.instances.as_dict()
    lost = Table(
        {**calls, "collective_id": np.where(calls["collective_id"] == 1, -1, calls["collective_id"])}
    )
    tables = {n: SimpleNamespace(num_devices=8) for n in range(4)}
    mended = Pairs(pairs.ranks, pairs.collectives, lost, {}, {}, ())
    found = straggler_summary(mended, tables, Nodes(tables))
    assert found["end_deviation_us"].tolist() == [0, 0, 20, 0]
    assert found["num_collectives"].tolist() == [1, 1, 1, 0] and found["total_nccl_dur_us"].iloc[3] == 10


def rank(timeline):
    return SimpleNamespace(num_devices=8, figures=SimpleNamespace(timeline=timeline))


def test_the_table_has_a_row_per_configuration_and_rank_with_the_evidence_from_its_trace():
    busy = {"computation_time_ms": 10.0, "idle_time_ms": 1.0}
    late = {"computation_time_ms": 11.0, "idle_time_ms": 5.0}
    settings = {
        Key(256, 28): {0: rank(busy), 1: rank(late), 2: rank(busy)},
        Key(512, 28, repeat=2): {0: rank(None), 1: rank({"idle_time_ms": 7.0}), 2: rank(busy)},
    }
    pairs = {setting: matched(FIRST, SECOND, THIRD, TORN) for setting in settings}
    late_host = Finding(1, "host_late", True, 4.0, (5,), 3.5, "rank 1: its host launches late")
    explained = {Key(256, 28): SimpleNamespace(findings=(late_host,))}
    table = stragglers(SimpleNamespace(ranks=settings), pairs, explained)
    assert list(table) == STRAGGLERS and len(table) == 6
    assert table["threads"].tolist() == [256] * 3 + [512] * 3
    assert table["channel"].tolist() == [28] * 6 and table["repeat"].tolist() == [1] * 3 + [2] * 3
    assert table["rank"].tolist() == [0, 1, 2] * 2
    np.testing.assert_array_equal(table["computation_time_ms"], [10, 11, 10, np.nan, np.nan, 10])
    np.testing.assert_array_equal(table["idle_time_ms"], [1, 5, 1, np.nan, 7, 1])
    assert table["verdict"].tolist() == ["", "rank 1: its host launches late", "", "", "", ""]


def test_a_configuration_without_collectives_names_nobody():
    nothing = matched(FIRST)
    none = Pairs((), nothing.collectives.take([]), nothing.instances.take([]), {}, {}, ())
    ranks = {Key(256, 28): {0: rank(None)}}
    table = stragglers(SimpleNamespace(ranks=ranks), {Key(256, 28): none}, {})
    assert table["verdict"].tolist() == [""] and table["num_collectives"].tolist() == [0]
    assert table["caused_wait_time_us"].tolist() == table["end_deviation_us"].tolist() == [0]
