"""Which configuration is fastest, and what the repeats allow to claim."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.verdict.ranking import Contender, certainty, contenders, headline, tied, uneven_steps
from lab.rooms.sweep.verdict.time import copied


def ranked(*totals_ms):
    """Contenders in the order given: 256 threads with 28, 42, 56... channels."""
    return [Contender(Knobs(256, 28 + 14 * n), tuple(totals)) for n, totals in enumerate(totals_ms)]


def _configs(rows):
    columns = ["threads", "channel", "status", "total_time_ms"]
    return pd.DataFrame(rows, columns=columns).assign(algorithm="", protocol="")


def test_contenders_are_the_complete_configurations_fastest_median_first():
    rows = [
        *((256, 28, "ok", ms) for ms in (10.0, 30.0, 20.0)),
        *((512, 28, "ok", ms) for ms in (19.0, 19.5, 90.0)),
        (512, 42, "ok", np.nan),
        (128, 42, "failed", 1.0),
        (384, 42, "ok", 25.0),
    ]
    found = contenders(_configs(rows))
    assert found == [
        Contender(Knobs(512, 28), (19.0, 19.5, 90.0)),
        Contender(Knobs(256, 28), (10.0, 30.0, 20.0)),
        Contender(Knobs(384, 42), (25.0,)),
    ]
    assert [one.median_ms for one in found] == [19.5, 20.0, 25.0]
    assert found[0].name == "512 threads, 28 channels"


def test_copies_of_one_recording_are_no_repeats_and_are_named():
    rows = [*((256, 28, "ok", 10.0) for _ in range(4)), *((512, 28, "ok", ms) for ms in (12.0, 12.0, 13.0))]
    configs = _configs(rows).assign(repeat=[1, 2, 3, 4, 1, 2, 3])
    found = contenders(configs)
    assert found == [Contender(Knobs(256, 28), (10.0,)), Contender(Knobs(512, 28), (12.0, 13.0))]
    assert "One of the first two has only one complete run" in certainty(found)
    assert copied(configs) == [
        "No repeat of its own: 256t 28ch (repeat 2), 256t 28ch (repeat 3), 256t 28ch (repeat 4), "
        "512t 28ch (repeat 2), whose total time is that of an earlier repeat to the last digit."
    ]
    assert copied(configs[configs["repeat"] == 1]) == []


def test_equally_fast_configurations_stand_in_the_order_of_their_settings():
    rows = [(threads, channel, "ok", 10.0) for threads in (512, 256) for channel in (42, 28)]
    found = contenders(_configs(rows))
    assert [one.knobs[:2] for one in found] == [(256, 28), (256, 42), (512, 28), (512, 42)]


@pytest.mark.parametrize(
    ("totals_ms", "overlap"),
    [
        ([(10, 12), (12, 14)], True),
        ([(10, 12), (11.9, 14)], True),
        ([(10, 12), (12.1, 14)], False),
        ([(10, 12), (12.1, 14), (11, 20)], False),
        ([(10, 12), (11, 14), (20,)], True),
        ([(10,), (9, 14)], False),
        ([(10, 12), (11,)], False),
        ([(10, 12)], False),
        ([], False),
    ],
)
def test_the_first_two_are_tied_if_their_repeats_touch(totals_ms, overlap):
    assert tied(ranked(*totals_ms)) is overlap


def test_without_a_complete_configuration_there_is_no_result():
    assert "no result" in headline([]) and certainty([]) is None


def test_one_configuration_alone_is_compared_to_nothing():
    text = headline(ranked((10, 12, 14)))
    assert "Only 256 threads, 28 channels" in text and "12.0 ms" in text and "nothing to compare" in text
    assert certainty(ranked((10, 12, 14))) is None


def test_the_fastest_leads_the_next_by_so_many_percent_of_its_own_time():
    text = headline(ranked((10, 10), (12.5, 12.5), (99, 99)))
    assert text.startswith("256 threads, 28 channels is fastest: 10.0 ms")
    assert "256 threads, 42 channels, takes 25.0 % longer (12.5 ms)" in text


def test_a_tie_is_no_win():
    text = headline(ranked((10, 14), (11, 15)))
    assert text.startswith("256 threads, 28 channels is within noise of 256 threads, 42 channels: 12.0 ms")
    assert "and 13.0 ms are inside the spread" in text
    assert "fastest" not in text


@pytest.mark.parametrize(
    ("totals_ms", "words"),
    [
        ([(10,), (12,)], "These are one run each"),
        ([(10, 11), (12,)], "One of the first two has only one complete run"),
        ([(10,), (12, 13)], "One of the first two has only one complete run"),
        ([(10,), (12,), (13, 14)], "These are one run each"),
    ],
)
def test_single_runs_support_no_claim(totals_ms, words):
    text = certainty(ranked(*totals_ms))
    assert text.startswith(words) and "no claim" in text


def test_overlapping_repeats_are_told_with_both_spans():
    text = certainty(ranked((12, 10), (14, 11, 13)))
    assert text.startswith("The repeats overlap")
    assert "2 repeats of the first range over 10.0 to 12.0 ms, 3 of the second over 11.0 to 14.0 ms" in text


@pytest.mark.parametrize(
    ("first", "second", "odds"), [(2, 2, 6), (3, 2, 10), (2, 3, 10), (3, 3, 20), (5, 5, 252)]
)
def test_separate_repeats_happen_by_chance_once_in_all_ways_to_deal_them_out(first, second, odds):
    text = certainty(ranked([10] * first, [20] * second))
    assert "do not overlap" in text and f"once in {odds} sweeps" in text
    assert f"{first} repeats of the first range over 10.0 to 10.0 ms, {second} of the second" in text


def steps(*rows):
    """Timeline and configurations of (threads, steps, status)."""
    frame = pd.DataFrame(rows, columns=["threads", "steps", "status"]).assign(channel=28, repeat=0)
    frame = frame.assign(algorithm="", protocol="")
    return frame.drop(columns="status"), frame.drop(columns="steps")


def test_traces_with_different_numbers_of_steps_do_not_compare():
    assert uneven_steps(*steps((256, 2, "ok"), (512, 2, "ok"))) is None
    assert "hold 2 and 3 profiled steps" in uneven_steps(*steps((256, 3, "ok"), (512, 2, "ok")))
    assert "hold 1 and 2 and 3 profiled" in uneven_steps(
        *steps((256, 3, "ok"), (512, 2, "ok"), (128, 1, "ok"))
    )
    assert uneven_steps(*steps((256, 2, "ok"), (512, 3, "failed"))) is None
