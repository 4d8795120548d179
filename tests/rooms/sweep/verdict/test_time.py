"""Where the time goes over a sweep, which rank is late, and what is left out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.verdict.ranking import Contender
from lab.rooms.sweep.verdict.time import cpu_only, exposed_share, left_out, on_cpu, origin


def shares(*rows):
    """Configurations of (threads, exposed ms, total ms, status)."""
    columns = ["threads", "exposed_comm_time_ms", "total_time_ms", "status"]
    return exposed_share(pd.DataFrame(rows, columns=columns).assign(channel=28, algorithm="", protocol=""))


def test_the_share_of_exposed_communication_goes_from_the_least_to_the_largest():
    text = shares((512, 160, 200, "ok"), (256, 120, 200, "ok"), (384, 140, 200, "ok"))
    assert "from 60 % of the total time (256 threads, 28 channels) to 80 % (512 threads" in text


def test_repeats_of_a_configuration_count_by_their_median():
    rows = [(256, ms, 100, "ok") for ms in (10, 11, 90)]
    assert "from 11 %" in shares(*rows, (512, 50, 100, "ok"))


def test_incomplete_configurations_have_no_share():
    assert shares((256, 20, 100, "ok"), (512, 90, 100, "failed")).count("20 %") == 1
    assert shares((256, 20, 100, "failed")) is None
    assert shares((256, np.nan, 100, "ok")) is None


@pytest.mark.parametrize(("most", "same"), [(804, True), (806, False)])
def test_shares_that_agree_in_whole_percent_are_one_share(most, same):
    text = shares((256, 800, 1000, "ok"), (512, most, 1000, "ok"))
    assert ("80 % of the total time in every configuration" in text) is same


def test_no_exposed_communication_at_all_is_not_told():
    assert shares((256, 0, 100, "ok"), (512, 0, 100, "ok")) is None
    assert "from 0 %" in shares((256, 0, 100, "ok"), (512, 1, 100, "ok"))
    assert "from 0 % of" in shares((256, 0, 100, "ok"), (512, 30, 100, "ok"))


def test_what_is_left_out_is_grouped_by_status_and_reason():
    rows = [
        (256, 28, 0, "ok", None),
        (256, 42, 0, "failed", "exit code 1"),
        (512, 42, 1, "failed", "exit code 1"),
        (512, 28, 0, "failed", ""),
        (512, 56, 2, "missing", np.nan),
    ]
    frame = pd.DataFrame(rows, columns=["threads", "channel", "repeat", "status", "reason"])
    frame = frame.assign(algorithm="", protocol="")
    assert left_out(frame) == [
        "Left out, failed (exit code 1): 256t 42ch (repeat 0), 512t 42ch (repeat 1).",
        "Left out, failed: 512t 28ch (repeat 0).",
        "Left out, missing: 512t 56ch (repeat 2).",
    ]


def test_a_run_is_on_cpu_only_if_every_trace_is():
    def frame(*devices):
        return pd.DataFrame({"device": list(devices)})

    assert on_cpu(frame("cpu")) is True and on_cpu(frame("cpu", "cpu")) is True
    assert on_cpu(frame("cpu", "gpu")) is False and on_cpu(frame()) is False


def test_cpu_runs_have_a_variation_and_no_winner():
    one, two = Contender(Knobs(256, 28), (10.0, 11.0)), Contender(Knobs(512, 28), (20.0,))
    assert len(cpu_only([])) == len(cpu_only([one])) == 2
    assert "no configuration wins" in cpu_only([one])[0]
    assert "from 10.5 to 20.0 ms" in cpu_only([one, two])[2]
    assert "from 10.5 to 20.0 ms" in cpu_only([one, Contender(Knobs(384, 28), (15.0,)), two])[2]


def test_numbers_that_this_run_did_not_measure_are_marked():
    assert "replayed" in origin("replayed") and "synthetic" in origin("synthetic")
    assert origin("measured") is None
