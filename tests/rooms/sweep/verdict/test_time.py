"""Where the time goes over a sweep, which rank is late, and what is left out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lab.rooms.sweep.verdict.time import exposed_share, left_out, on_cpu


def shares(*rows):
    """Configurations of (threads, exposed ms, total ms, status)."""
    columns = ["threads", "exposed_comm_time_ms", "total_time_ms", "status"]
    return exposed_share(pd.DataFrame(rows, columns=columns).assign(channel=28, algorithm="", protocol=""))


def test_the_share_of_exposed_communication_goes_from_the_least_to_the_largest():
    text = shares((512, 160, 200, "ok"), (256, 120, 200, "ok"), (384, 140, 200, "ok"))
    assert "from 60 % of the total time (256 threads, 28 channels) to 80 % (512 threads" in text


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
    frame = frame.assign(algorithm="", protocol="", total_time_ms=10.0)
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


def test_copies_of_a_repeat_are_named():
    rows = [
        *((256, n, 10.0) for n in (1, 2, 3)),
        *((512, n, ms) for n, ms in ((1, 12.0), (2, 12.0), (3, 13.0))),
    ]
    configs = pd.DataFrame(rows, columns=["threads", "repeat", "total_time_ms"]).assign(
        channel=28, algorithm="", protocol="", status="ok"
    )
    assert left_out(configs) == [
        "No repeat of its own: 256t 28ch (repeat 2), 256t 28ch (repeat 3), 512t 28ch (repeat 2), whose total "
        "time is that of an earlier repeat to the last digit."
    ]
    assert left_out(configs[configs["repeat"] == 1]) == []
