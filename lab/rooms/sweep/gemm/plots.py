"""The pipeline's CSV files -> PNG files: the five of the original sweep, and four of our own.

Settings come from the data and are ordered by number. One that was run but has no GEMM in the list is shown
as `no data`, not as 0.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lab.errors import BadDataError
from lab.report.figures import Cell, cell_grid, distributions, lines, ranges, save_png, stacked_bars
from lab.rooms.sweep.effective import NCCL_EXTRA_THREADS
from lab.rooms.sweep.gemm.report import Report
from lab.rooms.sweep.gemm.variance.top import TOP_FILE
from lab.rooms.sweep.names import name_of, short_name, size_text
from lab.rooms.sweep.tables import PARTS, SETTING

AXIS = "max − min of a GEMM's time, µs"
KNOBS = {"threads": "threads", "channel": "channels", "rank": "ranks"}
MOST_ROWS = 40
_LINE = ["threads", "algorithm", "protocol"]
UNKNOWN = "unknown"


def draw_plots(
    out: Path, traces: pd.DataFrame, *, top_k: int = 5, only: tuple[str, ...] | None = None
) -> Report:
    """Draw every plot whose CSV file is in the analysis folder `out` into `out/plots`.

    traces: setting and rank of each trace that was read. top_k: which of the variance lists to draw. only:
    plots of these files alone.
    """
    report = Report()
    for source, drawings in DRAWINGS.items():
        if only is not None and source not in only:
            continue
        path = out / source.format(k=top_k)
        if not path.exists():
            report.problems.append(f"{', '.join(drawings)}: not drawn, because there is no {path.name}")
            continue
        table = read_table(path)
        for name, draw in drawings.items():
            figure = draw(table, settings_of(table, traces)) if len(table) else None
            if figure is None:
                report.problems.append(f"{name}.png: not drawn, because {path.name} has nothing to show")
            else:
                report.files.append(save_png(figure, out / "plots" / f"{name}.png"))
    return report


def read_table(path: Path) -> pd.DataFrame:
    """A CSV file of the pipeline. Raises BadDataError if it is not a table."""
    try:
        # An empty algorithm or protocol is the library's own choice, and no missing value.
        raw: pd.DataFrame = pd.read_csv(path)
        words = raw.reindex(columns=_LINE[1:]).astype(object)
        table: pd.DataFrame = raw.assign(**words.where(words.notna(), ""))
    except (ValueError, pd.errors.ParserError) as error:
        raise BadDataError(
            f"not a CSV table: {error}", location=path, fix="write it again with lab gemm all --fresh"
        ) from error
    return table


def settings_of(table: pd.DataFrame, traces: pd.DataFrame) -> pd.DataFrame:
    """Setting and rank of every row of `table` and of every trace that was read."""
    columns = [*SETTING, "rank"]
    parts = [part.reindex(columns=columns) for part in (table, traces) if len(part)]
    joined: pd.DataFrame = pd.concat(parts) if parts else pd.DataFrame(columns=columns)
    settings: pd.DataFrame = joined.drop_duplicates()
    return settings


def _by(knob: str) -> Callable[[pd.DataFrame, pd.DataFrame], Figure]:
    def draw(table: pd.DataFrame, settings: pd.DataFrame) -> Figure:
        title = f"Time difference of the most varying GEMMs by {KNOBS[knob]}"
        return distributions([title], [_groups(table, settings, knob)], axis=AXIS)

    return draw


def _violins(table: pd.DataFrame, settings: pd.DataFrame) -> Figure:
    titles = [f"by {words}" for words in KNOBS.values()]
    return distributions(titles, [_groups(table, settings, knob) for knob in KNOBS], axis=AXIS, violins=True)


def _interaction(table: pd.DataFrame, settings: pd.DataFrame) -> Figure:
    channels = sorted(settings["channel"].dropna().unique())
    means = table.groupby(SETTING)["time_diff_us"].mean().unstack("channel").reindex(columns=channels)
    series = {}
    for threads, algorithm, protocol in sorted(set(settings[_LINE].itertuples(index=False, name=None))):
        label = "threads unknown" if _value("threads", threads) == UNKNOWN else f"{int(threads)} threads"
        row = means.reindex([(threads, algorithm, protocol)]).to_numpy()[0]
        series[" ".join(filter(None, (label, algorithm, protocol)))] = row
    return lines(
        [_value("channel", channel) for channel in channels],
        series,
        across="channels",
        axis=f"mean of {AXIS}",
        title="Threads and channels together",
    )


def _groups(table: pd.DataFrame, settings: pd.DataFrame, knob: str) -> dict[str, np.ndarray]:
    values_us = dict(list(table.groupby(knob)["time_diff_us"]))
    empty = pd.Series(dtype=float)
    values = sorted(settings[knob].dropna().unique())
    return {_value(knob, value): values_us.get(value, empty).to_numpy() for value in values}


def _value(knob: str, value: float) -> str:
    """A setting as an axis shows it: threads and channels that nobody recorded are 0, such a rank is -1."""
    return UNKNOWN if value < (0 if knob == "rank" else 1) else str(int(value))


def _timeline(table: pd.DataFrame, _: pd.DataFrame) -> Figure:
    groups = table.groupby(SETTING)
    means = groups[list(PARTS.values())].mean()
    totals = groups["total_time_ms"].agg(["min", "median", "max"])
    marks = [(float(low), float(middle), float(high)) for low, middle, high in totals.to_numpy()]
    parts = {role: means[column].to_numpy() for role, column in PARTS.items()}
    axis = "ms, mean over ranks; diamond and line: total time, median and range over ranks"
    return stacked_bars(_names(means.index), parts, axis=axis, marks=marks, mark_label="total time")


def _stragglers(table: pd.DataFrame, _: pd.DataFrame) -> Figure | None:
    share = table.pivot_table(index=SETTING, columns="rank", values="pct_arrived_last")
    if share.empty:
        return None  # no collective was recorded by all its ranks
    share_of = share.to_numpy(dtype=float)
    rows, columns = _names(share.index), [f"rank {_value('rank', rank)}" for rank in share.columns]

    def cell(down: int, across: int) -> Cell | None:
        percent = share_of[down, across]
        if np.isnan(percent):
            return None
        return Cell(f"{percent:.0f} %", "communication", percent / 100)

    return cell_grid(
        rows, columns, cell, legend={"share of collectives where the rank arrived last": "communication"}
    )


def _effective(table: pd.DataFrame, _: pd.DataFrame) -> Figure | None:
    on_gpu = table[table["effective_channels"] > 0]
    if on_gpu.empty:
        return None  # a CPU has no channels
    message = [name for name in ("collective", "msg_bytes") if name in on_gpu]
    cases = dict(list(on_gpu.groupby([*SETTING, *message])))
    settings = sorted({key[: len(SETTING)] for key in cases})
    messages = sorted({key[len(SETTING) :] for key in cases}, key=lambda key: (key[-1], key[0]))[-8:]

    def cell(down: int, across: int) -> Cell | None:
        rows = cases.get((*settings[down], *messages[across]))
        if rows is None:
            return None
        texts, good = [], True
        for knob in ("channels", "threads"):
            requested, effective = rows[f"requested_{knob}"].max(), sorted(set(rows[f"effective_{knob}"]))
            texts.append(f"{requested}→{'/'.join(map(str, effective))}")
            extra = NCCL_EXTRA_THREADS if knob == "threads" else 0
            good &= all(one in (requested, requested + extra) for one in effective)
        return Cell("  ".join(texts), "ok" if good else "warn", 0.5)

    names = [f"{name.strip('_')}\n{size_text(*size)}" if size else name for name, *size in messages]
    legend = {"channels and threads as requested": "ok", "something else": "warn"}
    return cell_grid(_names(settings), names, cell, legend=legend)


def _slowdown(table: pd.DataFrame, _: pd.DataFrame) -> Figure | None:
    compared = table.dropna(subset=["slowdown"])
    if compared.empty:
        return None
    shown = compared.sort_values("slowdown", ascending=False).head(MOST_ROWS)
    labels = [f"{name_of(row)}  {row.op} {row.M}×{row.N}×{row.K}" for row in shown.itertuples()]
    spans = list(shown[["ci_low", "slowdown", "ci_high"]].itertuples(index=False, name=None))
    # An interval that holds 1 is no evidence of a slowdown.
    roles = ["communication" if low > 1 else "unknown" for low, _, _ in spans]
    return ranges(
        labels,
        spans,
        axis="time under a concurrent collective ÷ time without (95 % interval)",
        reference=1.0,
        roles=roles,
    )


def _names(settings: object) -> list[str]:
    return [short_name(*setting) for setting in settings]  # type: ignore[attr-defined]


Draw = Callable[[pd.DataFrame, pd.DataFrame], "Figure | None"]
DRAWINGS: dict[str, dict[str, Draw]] = {
    TOP_FILE: {
        "variance_by_threads_boxplot": _by("threads"),
        "variance_by_channels_boxplot": _by("channel"),
        "variance_by_ranks_boxplot": _by("rank"),
        "variance_violin_combined": _violins,
        "variance_thread_channel_interaction": _interaction,
    },
    "timeline.csv": {"timeline_by_configuration": _timeline},
    "stragglers.csv": {"straggler_heatmap": _stragglers},
    "effective.csv": {"requested_vs_effective": _effective},
    "gemm_overlap_effect.csv": {"gemm_overlap_slowdown": _slowdown},
}
