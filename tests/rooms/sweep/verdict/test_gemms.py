"""What the settings do to the GEMMs, from tables with planted times."""

from __future__ import annotations

import pandas as pd
import pytest

from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.verdict.time import gemm_change, starved


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


def test_both_knobs_are_told_if_both_were_changed():
    settings = [(256, 28), (512, 28), (256, 42), (512, 42)]
    rows = [row(8, setting, us) for setting, us in zip(settings, (100, 110, 200, 220), strict=True)]
    threads, channels = starved(pd.DataFrame(rows), configs(*settings))
    assert threads.startswith("With 512 instead of 256 threads") and "at most 10 %" in threads
    assert channels.startswith("With 42 instead of 28 channels") and "at most 100 %" in channels


def test_the_other_knob_stays_equal_within_a_comparison():
    rows = [row(8, (256, 28), 100), row(8, (512, 42), 300)]
    assert starved(pd.DataFrame(rows), configs((256, 28), (512, 42))) == []


def test_repeats_and_settings_of_the_other_knob_give_one_ratio_per_shape():
    settings = [(t, c) for t in (256, 512) for c in (28, 42, 56)]
    times = {28: (100, 110), 42: (100, 120), 56: (100, 400)}
    rows = [row(8, (t, c), times[c][t == 512]) for t, c in settings]
    assert (
        "1 of 1 GEMM shape takes over 5 % longer (at most 20 %)"
        in starved(pd.DataFrame(rows), configs(*settings))[0]
    )


def test_an_incomplete_configuration_starves_nothing():
    rows = [row(8, FEW, 100), row(8, MANY, 110), row(8, (1024, 28), 900)]
    (text,) = starved(pd.DataFrame(rows), configs(FEW, MANY, failed=[(1024, 28)]))
    assert text.startswith("With 512 instead of 256")
