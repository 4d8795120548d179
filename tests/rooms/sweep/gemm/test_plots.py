"""Plots from the CSV files: settings from the data, ordered by number; missing ones are shown as missing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from lab.errors import BadDataError
from lab.rooms.sweep.gemm import plots as module
from lab.rooms.sweep.gemm.plots import draw_plots, settings_of
from lab.rooms.sweep.knobs import Key

FIVE = {
    "variance_by_threads_boxplot",
    "variance_by_channels_boxplot",
    "variance_by_ranks_boxplot",
    "variance_violin_combined",
    "variance_thread_channel_interaction",
}


def variance_rows(settings: list[tuple[int, int]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"threads": t, "channel": c, "rank": rank, "time_diff_us": 100.0 + c + rank + 7 * k}
            for t, c in settings
            for rank in range(2)
            for k in range(3)
        ]
    )


NO_TRACES = pd.DataFrame()
TRACES = pd.DataFrame(
    [
        {"threads": t, "channel": c, "algorithm": "", "protocol": "", "rank": r}
        for t in (256, 1024)
        for c in (28, 100)
        for r in range(2)
    ]
)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    variance_rows([(256, 28), (1024, 28)]).to_csv(
        tmp_path / "top5_gemm_kernels_time_variance.csv", index=False
    )
    TRACES.assign(
        computation_time_ms=4.0,
        exposed_comm_time_ms=3.0,
        exposed_memcpy_time_ms=1.0,
        idle_time_ms=2.0,
        total_time_ms=10.0,
    ).to_csv(tmp_path / "timeline.csv", index=False)
    return tmp_path


def test_the_five_known_plots_are_drawn_at_300_dpi(out: Path) -> None:
    drawn = {path.stem: path for path in draw_plots(out, TRACES).files}
    assert set(drawn) >= FIVE
    height, width = imread(drawn["variance_by_threads_boxplot"]).shape[:2]
    assert (width, height) == (round(0.75 * 10.6 * 300), round(3.9 * 300))


def test_settings_are_ordered_by_number_and_an_empty_one_is_there_without_values(out: Path) -> None:
    table = pd.read_csv(out / "top5_gemm_kernels_time_variance.csv")
    settings = settings_of(table, TRACES)
    assert list(module._groups(table, settings, "threads")) == ["256", "1024"]
    groups = module._groups(table, settings, "channel")
    assert list(groups) == ["28", "100"] and len(groups["100"]) == 0


def test_a_missing_setting_is_written_on_the_plot_and_a_gap_in_the_line(out: Path) -> None:
    table = module.read_table(out / "top5_gemm_kernels_time_variance.csv")
    figure = module._by("channel")(table, settings_of(table, TRACES))
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["28\nn 12", "100\nno data"]
    line = module._interaction(table, settings_of(table, TRACES)).axes[0].lines[0]
    assert line.get_ydata()[0] == pytest.approx(135.5) and pd.isna(line.get_ydata()[1])


def test_tables_that_lack_are_said_and_the_others_drawn(out: Path) -> None:
    report = draw_plots(out, TRACES)
    assert {text.rsplit(" ", 1)[1] for text in report.problems} == {
        "stragglers.csv",
        "effective.csv",
        "gemm_overlap_effect.csv",
    }
    assert "timeline_by_configuration" in {path.stem for path in report.files}


def test_an_interval_that_holds_one_is_not_coloured_as_a_slowdown(tmp_path: Path) -> None:
    row = {**Key(256, 28)._asdict(), "op": "aten::mm", "M": 1, "N": 2, "K": 3}
    table = pd.DataFrame([{**row, "slowdown": 1.5, "ci_low": low, "ci_high": 2.0} for low in (1.2, 0.9)])
    figure = module._slowdown(table, table)
    assert figure is not None
    colours = {line.get_color() for line in figure.axes[0].lines[1:]}
    assert len(colours) == 2


def test_channels_of_a_cpu_are_not_drawn(tmp_path: Path) -> None:
    row = {"threads": 256, "channel": 28, "rank": 0, "collective": "allreduce", "requested_channels": 28}
    pd.DataFrame(
        [row | {"effective_channels": -1, "requested_threads": 256, "effective_threads": -1}]
    ).to_csv(tmp_path / "effective.csv", index=False)
    report = draw_plots(tmp_path, NO_TRACES)
    assert report.files == [] and any("nothing to show" in text for text in report.problems)


def test_a_file_that_is_no_table_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "timeline.csv").write_text("")
    with pytest.raises(BadDataError) as error:
        draw_plots(tmp_path, NO_TRACES)
    assert "timeline.csv" in str(error.value.location)


def test_what_a_single_trace_does_not_say_is_unknown_on_the_axes_and_not_0_or_minus_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = variance_rows([(0, 0)])
    rows["rank"] = -1
    rows.to_csv(tmp_path / "top5_gemm_kernels_time_variance.csv", index=False)
    ticks: dict[str, list[str]] = {}

    def keep(figure: Figure, path: Path) -> Path:
        figure.canvas.draw()
        ticks[path.stem] = [tick.get_text() for ax in figure.axes for tick in ax.get_xticklabels()]
        ticks[path.stem] += [text.get_text() for one in figure.legends for text in one.get_texts()]
        return path

    monkeypatch.setattr(module, "save_png", keep)
    draw_plots(tmp_path, NO_TRACES)
    assert set(ticks) == FIVE
    for name in FIVE - {"variance_thread_channel_interaction"}:
        assert {text.splitlines()[0] for text in ticks[name]} == {"unknown"}, name
    assert "unknown" in ticks["variance_thread_channel_interaction"]


@pytest.mark.filterwarnings("error")
def test_stragglers_without_a_complete_collective_are_not_drawn_and_no_library_warns(tmp_path: Path) -> None:
    rows = [{"threads": 0, "channel": 0, "rank": r, "pct_arrived_last": float("nan")} for r in range(2)]
    pd.DataFrame(rows).to_csv(tmp_path / "stragglers.csv", index=False)
    report = draw_plots(tmp_path, NO_TRACES)
    assert report.files == [] and any("straggler_heatmap" in text for text in report.problems)


def test_each_algorithm_and_protocol_is_a_line_of_its_own(tmp_path: Path) -> None:
    rows = variance_rows([(256, 28), (256, 42)])
    both = [rows.assign(algorithm=one, protocol=other) for one, other in (("ring", "ll"), ("tree", ""))]
    pd.concat(both).to_csv(tmp_path / "top5_gemm_kernels_time_variance.csv", index=False)
    table = module.read_table(tmp_path / "top5_gemm_kernels_time_variance.csv")
    figure = module._interaction(table, settings_of(table, NO_TRACES))
    names = [line.get_label() for line in figure.axes[0].lines]
    assert names == ["256 threads ring ll", "256 threads tree"]
    assert {path.stem for path in draw_plots(tmp_path, NO_TRACES).files} == FIVE
