"""Plots: settings from the data, ordered by number; missing ones are shown as missing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.image import imread

from lab.rooms.sweep.gemm.beside import slowdown_plot
from lab.rooms.sweep.gemm.variance import VARIANCE, settings_of, write_plots
from lab.rooms.sweep.knobs import Key


def variance_rows(settings: list[tuple[int, int]], **words: str) -> pd.DataFrame:
    rows = [
        {**Key(*setting, **words)._asdict(), "rank": rank, "time_diff_us": 100.0 + setting[1] + rank + 7 * k}
        for setting in settings
        for rank in range(2)
        for k in range(3)
    ]
    return pd.DataFrame(rows)


TOP = variance_rows([(256, 28), (1024, 28)])
TRACES = variance_rows([(256, 28), (1024, 28), (256, 100), (1024, 100)]).drop(columns="time_diff_us")


def test_the_five_known_plots_are_drawn_at_300_dpi(tmp_path: Path) -> None:
    drawn = write_plots(TOP, TRACES, tmp_path)
    assert [path.stem for path in drawn] == [
        "variance_by_threads_boxplot",
        "variance_by_channels_boxplot",
        "variance_by_ranks_boxplot",
        "variance_violin_combined",
        "variance_thread_channel_interaction",
    ]
    height, width = imread(drawn[0]).shape[:2]
    assert (width, height) == (round(0.75 * 10.6 * 300), round(3.9 * 300))
    assert write_plots(TOP[:0], TRACES, tmp_path) == []


def ticks(name: str, top: pd.DataFrame, traces: pd.DataFrame) -> list[str]:
    figure = VARIANCE[name](top, settings_of(top, traces))
    figure.canvas.draw()
    return [label.get_text() for ax in figure.axes for label in ax.get_xticklabels()]


def test_settings_are_ordered_by_number_and_a_missing_one_is_written_on_the_plot() -> None:
    assert ticks("variance_by_threads_boxplot", TOP, TRACES) == ["256\nn 6", "1024\nn 6"]
    assert ticks("variance_by_channels_boxplot", TOP, TRACES) == ["28\nn 12", "100\nno data"]
    line = VARIANCE["variance_thread_channel_interaction"](TOP, settings_of(TOP, TRACES)).axes[0].lines[0]
    assert line.get_ydata()[0] == 135.5 and pd.isna(line.get_ydata()[1])


def test_what_a_single_trace_does_not_say_is_unknown_on_the_axes_and_not_0_or_minus_1() -> None:
    top = variance_rows([(0, 0)]).assign(rank=-1)
    for name in VARIANCE:
        assert {text.splitlines()[0] for text in ticks(name, top, top[:0])} == {"unknown"}, name


def test_each_algorithm_and_protocol_is_a_line_of_its_own() -> None:
    rows = [(256, 28), (256, 42)]
    top = pd.concat(
        [variance_rows(rows, algorithm="ring", protocol="ll"), variance_rows(rows, algorithm="tree")]
    )
    figure = VARIANCE["variance_thread_channel_interaction"](top, settings_of(top, top[:0]))
    assert [line.get_label() for line in figure.axes[0].lines] == ["256 threads ring ll", "256 threads tree"]


def test_an_interval_that_holds_one_is_not_coloured_as_a_slowdown() -> None:
    row = {**Key(256, 28)._asdict(), "op": "aten::mm", "M": 1, "N": 2, "K": 3}
    table = pd.DataFrame([{**row, "slowdown": 1.5, "ci_low": low, "ci_high": 2.0} for low in (1.2, 0.9)])
    figure = slowdown_plot(table)
    assert figure is not None and len({line.get_color() for line in figure.axes[0].lines[1:]}) == 2
    assert slowdown_plot(table.assign(slowdown=float("nan"))) is None
