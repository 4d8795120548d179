"""Who is waited for, and who wins without the waiting."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lab.recordings.ranks.explained import READY, READY_FREE, RECORDED, Explained, Finding, WhatIf
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.ranks.verdict import bound_by_hosts, ranking, stragglers, who_wins


def setting(
    recorded: float, ready: float, *, hosts_ms: float = 0.0, findings: tuple[Finding, ...] = ()
) -> Explained:
    lengths = {RECORDED: recorded, READY: ready, READY_FREE: ready - 6}
    rows = tuple(WhatIf(5, change, (), ms, recorded) for change, ms in lengths.items())
    account = SimpleNamespace()
    return Explained(account, findings, rows, {}, {(5, 0): hosts_ms, (5, 1): hosts_ms}, ())


def test_the_order_without_waits_is_that_of_the_settings_not_of_the_late_rank():
    settings = {
        Key(256, 28): setting(80.0, 24.6),
        Key(256, 42): setting(66.0, 25.9),
        Key(512, 28): setting(62.0, 24.9),
    }
    table = ranking(settings)
    assert list(zip(table["threads"], table["channel"], strict=True)) == [(256, 28), (512, 28), (256, 42)]
    assert table["place_measured"].tolist() == [3, 1, 2] and table["place_without_waits"].tolist() == [
        1,
        2,
        3,
    ]
    assert table["without_waits_low_ms"].isna().all() and table["runs"].tolist() == [1, 1, 1]
    told = who_wins(table)
    assert told == (
        "With waiting for late ranks taken out, 256 threads, 28 channels takes 24.6 ms per step and 512 "
        "threads, 28 channels 24.9 ms (512 threads, 28 channels is first as measured; one run each, so "
        "neither order is proven)."
    )


def test_repeats_give_both_orders_their_intervals():
    runs = {Key(256, 28, repeat=n): setting(60.0 + n, 24.0 + 0.1 * n) for n in (1, 2, 3)}
    runs |= {Key(256, 42, repeat=n): setting(50.0 + n, 30.0 + 0.1 * n) for n in (1, 2, 3)}
    table = ranking(runs)
    best = table.iloc[0]
    assert best["runs"] == 3 and best["without_waits_ms"] == pytest.approx(24.2)
    half = 4.303 * 0.1 / math.sqrt(3)
    assert best["without_waits_high_ms"] == pytest.approx(24.2 + half, abs=0.01)
    assert best["measured_low_ms"] == pytest.approx(62 - 4.303 / math.sqrt(3), abs=0.01)
    assert "the intervals do not overlap" in (who_wins(table) or "")


def test_host_bound_settings_are_said_before_they_are_compared():
    settings = {
        Key(256, 28): setting(80, 24.6, hosts_ms=70),
        Key(256, 42): setting(66, 25.9, hosts_ms=60),
    }
    told = bound_by_hosts(settings)
    assert told is not None and "in every setting" in told and "24.6 to 25.9 ms" in told
    assert bound_by_hosts({key: setting(30, 29, hosts_ms=10) for key in settings}) is None


def test_hidden_stragglers_are_said_after_those_that_bind():
    late = Finding(7, "host_late", True, 107.0, (5,), 90.0, "rank 7: late")
    more = Finding(5, "more_work", False, 13.0, (5,), 0.0, "rank 5: more work")
    told = stragglers({Key(256, 28): setting(1, 1, findings=(late, more))})
    assert told == [
        "The others wait in 256t 28ch: rank 7: late.",
        "1 hidden behind them, such as 256t 28ch rank 5: more work.",
    ]
    assert stragglers({Key(256, 28): setting(1, 1)}) == []


def test_the_settings_whose_hosts_set_the_pace_are_named():
    late, ready = setting(80, 24.6, hosts_ms=70), setting(26, 25.9, hosts_ms=10)
    told = bound_by_hosts({Key(256, 28): late, Key(256, 42): ready})
    assert told is not None and told.startswith(
        "The hosts set the pace in 256t 28ch: from mark to mark a step takes 80.0 ms, and 24.6 ms"
    )
    alone = bound_by_hosts({Key(256, 28, repeat=n): late for n in (1, 2)})
    assert alone is not None and "in every setting" in alone and "Comparing settings" not in alone


@pytest.mark.parametrize(
    ("late", "who"), [((1,), "The hosts of rank 1 set"), ((1, 2), "The hosts of ranks 1, 2 set")]
)
def test_where_some_hosts_keep_up_the_late_ones_are_named_and_the_profile_is_not_blamed(late, who):
    one = setting(80, 24.6, hosts_ms=10)
    one = replace(one, host_ms={**one.host_ms, (5, 0): 10.0, **{(5, rank): 70.0 for rank in late}})
    told = bound_by_hosts({Key(256, channels): one for channels in (28, 42)})
    assert told is not None and told.startswith(f"{who} the pace in every setting: ")
    assert "look first for what differs" in told and "lighter profile" not in told
