"""Where the time goes over a sweep, which rank is late, and what is left out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.verdict import exposed_share, gemm_change, left_out, on_cpu, starved


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


def row(shape, setting, median_us, *, rank=0, repeat=0, n=1, sum_us=None, bias=False):
    """A row of the GEMM table; `shape` is M, and M = N = K."""
    threads, channel = setting
    return {
        **Key(threads, channel, repeat=repeat)._asdict(),
        "rank": rank,
        "op": "aten::mm",
        "B": 1,
        "M": shape,
        "N": shape,
        "K": shape,
        "bias": bias,
        "dtype": "BFloat16",
        "transpose": "TN",
        "n": n,
        "median_us": median_us,
        "sum_us": n * median_us if sum_us is None else sum_us,
    }


def configs(*settings, repeats=1, failed=()):
    rows = [
        {**Key(threads, channel, repeat=repeat)._asdict(), "status": "ok"}
        for threads, channel in settings
        for repeat in range(repeats)
    ]
    rows += [{**Key(t, c, repeat=0)._asdict(), "status": "failed"} for t, c in failed]
    return pd.DataFrame(rows)


FEW, MANY, BROKEN = (256, 28), (512, 28), (512, 42)


def change(rows, *, repeats=1, failed=()):
    settings = sorted({(one["threads"], one["channel"]) for one in rows} - set(failed))
    return gemm_change(pd.DataFrame(rows), configs(*settings, repeats=repeats, failed=failed))


def test_the_time_per_rank_is_summed_over_shapes_and_the_median_taken_over_ranks():
    rows = [row(8, FEW, 1, sum_us=1000 * ms, rank=rank) for rank, ms in enumerate((1, 2, 6))]
    rows += [row(16, FEW, 1, sum_us=3000, rank=rank) for rank in range(3)]
    rows += [row(8, MANY, 1, sum_us=10_000), row(16, MANY, 1, sum_us=2_500)]
    text = change(rows)
    assert "from 5.0 ms per rank (256 threads, 28 channels) to 12.5 ms (512 threads, 28 channels)" in text
    assert "2.50 times as long" in text


def test_repeats_are_runs_of_their_own_and_do_not_add_up():
    rows = [row(8, FEW, 1, sum_us=2000, repeat=repeat) for repeat in range(2)]
    rows += [row(8, MANY, 1, sum_us=3000, repeat=repeat) for repeat in range(2)]
    assert "from 2.0 ms" in change(rows, repeats=2) and "1.50 times" in change(rows, repeats=2)


def test_an_incomplete_configuration_is_left_out_and_one_alone_changes_nothing():
    rows = [row(8, FEW, 1, sum_us=2000), row(8, BROKEN, 1, sum_us=90_000)]
    assert change(rows, failed=[BROKEN]) is None
    text = change([*rows, row(8, MANY, 1, sum_us=3000)], failed=[BROKEN])
    assert "3.0 ms" in text and "90.0" not in text


def ratios(*percent, settings=(FEW, MANY), bias=False):
    """Shapes whose time goes from 100 µs to so many percent of it."""
    before, after = settings
    rows = [row(8 + n, before, 100, bias=bias) for n in range(len(percent))]
    rows += [row(8 + n, after, new, bias=bias) for n, new in enumerate(percent)]
    return starved(pd.DataFrame(rows), configs(*settings))


@pytest.mark.parametrize(
    ("percent", "words"),
    [
        ((105,), "none of 1 GEMM shape changes by over 5 %"),
        ((95,), "none of 1 GEMM shape changes by over 5 %"),
        ((105.001,), "1 of 1 GEMM shape takes over 5 % longer (at most 5 %)"),
        ((94.999,), "1 of 1 GEMM shape takes over 5 % less (at most 5 %)"),
        ((106,), "1 of 1 GEMM shape takes over 5 % longer (at most 6 %)"),
        ((94,), "1 of 1 GEMM shape takes over 5 % less (at most 6 %)"),
        ((106, 120, 100), "2 of 3 GEMM shapes take over 5 % longer (at most 20 %)"),
        ((94, 20, 100, 105), "2 of 4 GEMM shapes take over 5 % less (at most 80 %)"),
        ((110, 80), "longer (at most 10 %) and 1 of 2 GEMM shapes takes over 5 % less (at most 20 %)"),
    ],
)
def test_a_change_counts_beyond_five_percent_only(percent, words):
    (text,) = ratios(*percent)
    assert words in text


def test_each_knobs_highest_value_is_held_against_its_lowest():
    rows = [row(8, (threads, 28), us) for threads, us in ((256, 100), (384, 900), (512, 110))]
    (text,) = starved(pd.DataFrame(rows), configs((256, 28), (384, 28), (512, 28)))
    assert text.startswith("With 512 instead of 256 threads") and "at most 10 %" in text


def test_the_other_knob_stays_equal_within_a_comparison():
    rows = [row(8, (256, 28), 100), row(8, (512, 42), 300)]
    assert starved(pd.DataFrame(rows), configs((256, 28), (512, 42))) == []
