"""Which setting is fastest per step, and what the repeats allow to claim."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lab.rooms.sweep.tables import SweepTables
from lab.rooms.sweep.verdict import PROFILED, UNPROFILED, headline, step_times, uneven_steps
from tests.rooms.sweep.made import sweep

A, B, C = (256, 28), (256, 42), (512, 28)


def unprofiled(rows: list[tuple[tuple[int, int], int, int, float]]) -> pd.DataFrame:
    """Rows of (setting, repeat, number of steps, ms)."""
    return pd.DataFrame(
        [
            {"threads": setting[0], "channel": setting[1], "algorithm": "", "protocol": "", "repeat": repeat}
            | {"unprofiled_steps": steps, "unprofiled_ms": ms}
            for setting, repeat, steps, ms in rows
        ]
    )


def test_a_profiled_step_is_the_total_time_over_the_steps_of_the_trace() -> None:
    times = step_times(sweep({A: [30.0], B: [20.0, 24.0], C: [50.0]}))  # two steps each
    assert times.source == PROFILED
    assert [(one.knobs[:2], one.mean_ms) for one in times.ranked] == [(B, 10.0), (A, 15.0), (C, 25.0)]


def test_incomplete_runs_and_copies_of_a_run_do_not_count() -> None:
    tables = sweep({A: [20.0, 20.0, 26.0], B: [21.0], C: [1.0]}, failed={(512, 42): "exit code 1"})
    tables.configs.loc[tables.configs["threads"] == 512, "status"] = "incomplete"
    runs = step_times(tables).runs
    assert runs[["channel", "repeat", "step_ms"]].values.tolist() == [[28, 0, 10.0], [42, 0, 10.5]]


def test_steps_without_the_profiler_come_first_where_there_are_enough() -> None:
    tables = sweep({A: [20.0], B: [30.0]})
    rows = [(A, 0, 9, 8.0), (B, 0, 9, 7.0)]
    assert headline(step_times(tables, unprofiled(rows))).startswith(
        "256 threads, 42 channels is fastest: 7.0 ms per step without the profiler; 256 threads, 28 channels "
        "takes 8.0 ms; "
    )
    few = unprofiled([(A, 0, 4, 8.0), (B, 0, 4, 7.0)])
    assert step_times(tables, few).source == PROFILED and step_times(tables, few[:0]).source == PROFILED


def test_a_run_that_failed_after_many_steps_does_not_win_by_them() -> None:
    tables = sweep({A: [20.0], B: [30.0, 30.0]}, failed={C: "rank 3 ran out of memory"})
    steps = unprofiled([(A, 0, 9, 8.0), (B, 0, 9, 7.0), (B, 1, 9, 7.0), (C, 0, 9, 1.0)])
    runs = step_times(tables, steps).runs
    assert runs[["threads", "channel", "repeat"]].values.tolist() == [[256, 28, 0], [256, 42, 0]]
    alone = replace(tables, timeline=tables.timeline[:0], configs=tables.configs.assign(status="missing"))
    assert len(step_times(alone, steps).runs) == 3  # the profiler was off: no trace is due, and one is a copy


@pytest.mark.parametrize("steps", [4, 0])
def test_a_block_that_lacks_a_setting_counts_for_none(steps: int) -> None:
    """Block 3 is the slow one: with one setting's run of it alone, the other would win on paper."""
    rows = [(A, 1, 9, 40.0), (B, 1, 9, 41.0), (A, 2, 9, 40.2), (B, 2, 9, 41.2), (A, 3, 9, 70.0)]
    times = step_times(sweep({}), unprofiled([*rows, (B, 3, steps, 71.0)]))
    assert (times.source, sorted(times.runs["repeat"])) == (UNPROFILED, [1, 1, 2, 2])
    assert headline(times).startswith("256 threads, 28 channels is fastest: 40.1 ms per step (38.8 to 41.4)")


def test_without_a_result_and_with_one_setting_there_is_no_comparison() -> None:
    assert "no result" in headline(step_times(sweep({})))
    text = headline(step_times(sweep({A: [20.0, 24.0]})))
    assert text.startswith("Only 256 threads, 28 channels was analysed completely: 11.0 ms per step (")
    assert "nothing to compare it to" in text


def test_one_run_each_may_be_chance() -> None:
    assert headline(step_times(sweep({A: [20.0], B: [30.0]}))).endswith(
        "with one run each this order may be chance."
    )


def test_blocks_take_out_what_all_settings_share() -> None:
    """Repeats 20 % apart, settings 2 %: intervals over runs overlap, the blocks tell them apart."""
    slow = (1.0, 1.2, 1.4)
    totals = {A: 100.0, B: 102.0, C: 102.1}
    times = step_times(
        sweep(
            {key: [base * factor + n / 100 for n, factor in enumerate(slow)] for key, base in totals.items()}
        )
    )
    text = headline(times)
    assert text.startswith(
        "256 threads, 28 channels is fastest: 60.0 ms per step (35.2 to 84.9) from first to"
    )
    assert "it alone may be the best (a lead of 2.0 %, " in text and text.endswith("needed over 3 blocks).")


def test_settings_that_scatter_as_much_as_they_differ_are_within_noise() -> None:
    times = step_times(sweep({A: [40.0, 41.0, 40.2], B: [40.6, 40.3, 40.5], C: [60.0, 60.5, 60.1]}))
    assert "; within noise of 256 threads, 42 channels (a lead of 0." in headline(times)


def steps(*rows: tuple[int, int, str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Timeline and configurations of (threads, steps, status)."""
    frame = pd.DataFrame(rows, columns=["threads", "steps", "status"]).assign(channel=28, repeat=0)
    frame = frame.assign(algorithm="", protocol="")
    return frame.drop(columns="status"), frame.drop(columns="steps")


def test_traces_with_different_numbers_of_steps_do_not_compare() -> None:
    assert uneven_steps(*steps((256, 2, "ok"), (512, 2, "ok"))) is None
    assert "hold 2 and 3 profiled steps" in str(uneven_steps(*steps((256, 3, "ok"), (512, 2, "ok"))))
    assert uneven_steps(*steps((256, 2, "ok"), (512, 3, "failed"))) is None


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.0, -5.0])
def test_a_total_that_is_not_a_time_is_not_a_run(wrong: float) -> None:
    tables: SweepTables = sweep({A: [20.0], B: [30.0]})
    configs = tables.configs.copy()
    configs.loc[0, "total_time_ms"] = wrong
    assert [one.knobs[:2] for one in step_times(replace(tables, configs=configs)).ranked] == [B]
