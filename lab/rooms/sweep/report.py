"""The sweep's tables -> CSV files, figures, one page, and a verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.report.figures import Cell, cell_grid, save, stacked_bars, stacked_panels
from lab.report.page import Block, Card, Figure, Page, Prose, Section, Status, Table, write_page
from lab.report.tables import Heading, terminal_table, write_csv
from lab.rooms.sweep import verdict as words
from lab.rooms.sweep.verdict import GEMM_SHAPE, SETTING, Contender, short_name

if TYPE_CHECKING:
    from lab.rooms.sweep.analyze import SweepTables

QUESTION = "Which NCCL or RCCL setting starves the GEMMs, why, and did the setting take effect at all?"
TABLES = ("timeline", "effective", "gemm", "configs", "problems")
# Colour role -> timeline column; together they are the total time of a rank, without overlap.
PARTS = {
    "computation": "computation_time_ms",
    "communication": "exposed_comm_time_ms",
    "memcpy": "exposed_memcpy_time_ms",
    "idle": "idle_time_ms",
}
PILLS = {
    **dict.fromkeys(("ok", "honoured"), "ok"),
    **dict.fromkeys(("clamped", "incomplete"), "warn"),
    **dict.fromkeys(("ignored", "failed", "missing", "broken"), "fail"),
    "unknown": "unknown",
}
VERDICTS = ("honoured", "unknown", "clamped", "ignored")  # from good to bad
MESSAGE = ["collective", "msg_bytes"]
CONFIG_COLUMNS = [
    *[*SETTING, "repeat", "status", "reason", "total_time_ms", *PARTS.values(), "slowest_rank"],
    *["channels_verdict", "threads_verdict", "log_channels"],
]
MOST_MESSAGES = 10
MOST_SHAPES = 14
BARS_CAPTION = (
    "The parts of the total time, mean over ranks; communication and copies only where no computation hides "
    "them. The diamond is the median total time over ranks, the line "
    "reaches from the fastest to the slowest rank."
)
PANELS_CAPTION = (
    "Each rank on its own, on one scale. A rank with little communication beside ranks with much of it is "
    "the one that the others wait for."
)
FOOTNOTES = (
    "Computation, exposed communication, exposed copies and idle time add up to the total time of a rank: "
    "communication and copies count only where no computation runs beside them.",
    "Total time runs from the first start to the last end on the device inside the profiled window.",
    "Effective channels are grid[0] and effective threads block[0] of each collective's kernel. A block of "
    "the requested threads plus one warp (32) counts as honoured, as NCCL adds a warp of its own.",
    "A message's size is its total over ranks: the output of an all-gather, the input of a reduce-scatter.",
    "GEMMs are grouped by launching operator, shape, strides and dtype, never by kernel name.",
)


@dataclass(frozen=True)
class Findings:
    """What the report found; `best` has the least total time, None on a tie, on a CPU or without a result.

    `lacking` says what was asked for, or was there, and could not be analysed completely.
    """

    verdict: list[str]
    status: Status
    best: Contender | None
    files: list[Path]
    terminal: str
    lacking: list[str]


def report(
    tables: SweepTables,
    *,
    out: Path,
    title: str,
    provenance: dict[str, dict[str, str]],
    kind: str = "measured",
    more: Sequence[Section] = (),
) -> Findings:
    """Write `out/tables/*.csv`, `out/figures/*.png` and `out/report.html`, and say what they show.

    `kind` is measured, replayed or synthetic; `more` are sections to follow the sweep's own. Raises StorageError where `out` cannot be written.
    """
    files = [write_csv(getattr(tables, name), out / "tables" / f"{name}.csv") for name in TABLES]
    ranked = words.contenders(tables.configs)
    sentences, status = _verdict(tables, ranked, kind), _status(tables, ranked)
    page = Page(
        title=title,
        question=QUESTION,
        verdict=sentences,
        status=status,
        cards=_cards(tables, ranked),
        sections=[*_sections(tables, out / "figures"), *more],
        provenance=provenance,
        footnotes=[*FOOTNOTES, *_unlinked(tables.timeline)],
        room="sweep",
        kind=kind,
    )
    blocks = [block for section in page.sections for block in section.blocks]
    files += [out / block.png for block in blocks if isinstance(block, Figure)]
    files.append(write_page(page, out / "report.html"))
    terminal = _terminal(sentences, tables.configs, files[-1])
    lacking = words.absent(tables.configs)
    return Findings(sentences, status, _best(tables, ranked), files, terminal, lacking)


def _verdict(tables: SweepTables, ranked: list[Contender], kind: str) -> list[str]:
    headlines = _headlines(tables, ranked)
    found = [
        headlines[0],
        words.origin(kind),
        *headlines[1:],
        words.exposed_share(tables.configs),
        *([] if words.on_cpu(tables.timeline) else _of_settings(tables)),
        words.straggler(tables.timeline),
        *words.absent(tables.configs),
    ]
    return [sentence for sentence in found if sentence]


def _of_settings(tables: SweepTables) -> list[str | None]:
    """What the settings did, which only a GPU can show."""
    return [
        words.gemm_change(tables.gemm, tables.configs),
        *words.starved(tables.gemm, tables.configs),
        *words.obeyed(tables.effective, "channels"),
        *words.obeyed(tables.effective, "threads"),
    ]


def _headlines(tables: SweepTables, ranked: list[Contender]) -> list[str | None]:
    if ranked and words.on_cpu(tables.timeline):
        return [*words.cpu_only(ranked)]
    uneven = words.uneven_steps(tables.timeline, tables.configs)
    return [uneven] if uneven else [words.headline(ranked), words.certainty(ranked)]


def _best(tables: SweepTables, ranked: list[Contender]) -> Contender | None:
    uneven = words.uneven_steps(tables.timeline, tables.configs)
    barred = words.on_cpu(tables.timeline) or uneven or words.tied(ranked)
    return ranked[0] if ranked and not barred else None


def _status(tables: SweepTables, ranked: list[Contender]) -> Status:
    if not ranked:
        return "fail"
    verdicts = set(tables.effective["channels_verdict"]) | set(tables.effective["threads_verdict"])
    doubts = (
        words.on_cpu(tables.timeline),
        words.uneven_steps(tables.timeline, tables.configs) is not None,
        len(tables.problems) > 0,
        bool((tables.configs["status"] != "ok").any()),
        bool(verdicts & {"clamped", "ignored"}),
    )
    return "warn" if any(doubts) else "ok"


def _cards(tables: SweepTables, ranked: list[Contender]) -> list[Card]:
    configs = tables.configs
    complete = int((configs["status"] == "ok").sum())
    cards = [Card("Complete runs", f"{complete} of {len(configs)}", "tables/configs.csv")]
    if ranked:
        best, last = ranked[0], ranked[-1]
        cards = [
            Card("Least total time", f"{best.median_ms:.1f}", "tables/configs.csv", "ms", best.name),
            Card("Most total time", f"{last.median_ms:.1f}", "tables/configs.csv", "ms", last.name),
            *_share_card(configs, best),
            *_gemm_card(tables.gemm),
            *_obeyed_card(tables.effective, "channels"),
            *_obeyed_card(tables.effective, "threads"),
            *cards,
        ]
    return cards


def _share_card(configs: pd.DataFrame, best: Contender) -> list[Card]:
    of_best = (configs[SETTING] == [best.threads, best.channel]).all(axis=1)
    rows = configs[of_best & (configs["status"] == "ok")]
    percent = 100 * (rows["exposed_comm_time_ms"] / rows["total_time_ms"]).median()
    if pd.isna(percent):
        return []
    note = f"of total time, {best.name}"
    return [Card("Exposed communication", f"{percent:.0f}", "tables/configs.csv", "%", note)]


def _gemm_card(gemm: pd.DataFrame) -> list[Card]:
    if gemm.empty:
        return []
    totals_ms = gemm.groupby([*SETTING, "repeat", "rank"])["sum_us"].sum().groupby(SETTING).median() / 1000
    low, high = totals_ms.min(), totals_ms.max()
    value = f"{low:.1f}" if len(totals_ms) == 1 else f"{low:.1f}–{high:.1f}"
    return [
        Card("GEMM time per rank", value, "tables/gemm.csv", "ms", "median over ranks, all configurations")
    ]


def _obeyed_card(effective: pd.DataFrame, knob: str) -> list[Card]:
    judged = effective[effective[f"{knob}_verdict"] != "unknown"]
    cases = judged.groupby([*SETTING, "collective", "msg_bytes"])[f"{knob}_verdict"]
    if not len(cases):
        return []
    honoured = int(cases.apply(lambda verdicts: bool((verdicts == "honoured").all())).sum())
    note = "configurations × collectives × sizes"
    return [
        Card(
            f"{knob.capitalize()} honoured", f"{honoured} of {len(cases)}", "tables/effective.csv", note=note
        )
    ]


def _sections(tables: SweepTables, folder: Path) -> list[Section]:
    found = [
        Section("Where the time goes", _time_blocks(tables, folder)),
        Section("Requested and effective", _effective_blocks(tables, folder)),
        Section("GEMMs", _gemm_blocks(tables.gemm, folder)),
        Section("Configurations", [_configs_table(tables.configs)]),
    ]
    if len(tables.problems):
        caption = "What could not be read or is not as it should be"
        found.append(Section("Problems", [Table(tables.problems, caption, "tables/problems.csv")]))
    return [section for section in found if section.blocks]


def _time_blocks(tables: SweepTables, folder: Path) -> list[Block]:
    timeline = tables.timeline
    if timeline.empty:
        return []
    steps = " or ".join(str(count) for count in sorted(set(timeline["steps"])))
    axis = f"ms per rank ({steps} profiled steps)"
    bars = save(_config_bars(tables, axis), folder, "timeline")
    panels = save(_rank_panels(timeline, axis), folder, "timeline_ranks")
    return [
        Figure(bars, BARS_CAPTION, "figures/timeline.png", "tables/timeline.csv"),
        Figure(panels, PANELS_CAPTION, "figures/timeline_ranks.png", "tables/timeline.csv"),
        Table(timeline.drop(columns=["file"]), "Time of every rank", "tables/timeline.csv"),
    ]


def _config_bars(tables: SweepTables, axis: str) -> Drawing:
    settings = _settings(tables.configs)
    groups = tables.timeline.groupby(SETTING)
    means = groups[list(PARTS.values())].mean().reindex(settings)
    totals = groups["total_time_ms"].agg(["min", "median", "max"]).reindex(settings)
    marks = [(float(low), float(middle), float(high)) for low, middle, high in totals.to_numpy()]
    parts = {role: means[column].to_numpy() for role, column in PARTS.items()}
    labels = [_label(tables.configs, *setting) for setting in settings]
    return stacked_bars(labels, parts, axis=axis, marks=marks, mark_label="total time over ranks")


def _rank_panels(timeline: pd.DataFrame, axis: str) -> Drawing:
    titles, labels, parts = [], [], []
    for setting, rows in words.grouped(timeline, SETTING):
        means = rows.groupby("rank")[list(PARTS.values())].mean()
        titles.append(short_name(*setting))
        labels.append([f"r{rank}" for rank in means.index])
        parts.append({role: means[column].to_numpy() for role, column in PARTS.items()})
    return stacked_panels(titles, labels, parts, axis=axis)


def _effective_blocks(tables: SweepTables, folder: Path) -> list[Block]:
    effective = tables.effective
    if words.on_cpu(tables.timeline):
        return [
            Prose("Gloo ran on a CPU: there are no channels and no GPU threads to compare with the request.")
        ]
    if effective.empty:
        return [
            Prose("No collective with its message size was found in the traces, so nothing can be said here.")
        ]
    blocks: list[Block] = []
    for knob in ("channels", "threads"):
        figure = save(_effective_grid(effective, knob), folder, f"effective_{knob}")
        caption = f"{knob.capitalize()} asked for → given to the kernels, per collective and message size."
        blocks.append(Figure(figure, caption, f"figures/effective_{knob}.png", "tables/effective.csv"))
    return [*blocks, _effective_table(effective)]


def _effective_grid(effective: pd.DataFrame, knob: str) -> Drawing:
    """Rows are configurations, columns the messages that carry most bytes."""
    bytes_moved = (
        (effective["msg_bytes"] * effective["count"]).groupby([effective[key] for key in MESSAGE]).sum()
    )
    messages = sorted(bytes_moved.nlargest(MOST_MESSAGES).index, key=lambda key: (key[1], key[0]))
    settings = _settings(effective)
    cases = dict(words.grouped(effective, [*SETTING, *MESSAGE]))

    def cell(down: int, across: int) -> Cell | None:
        rows = cases.get((*settings[down], *messages[across]))
        if rows is None:
            return None
        verdict = _worst(rows[f"{knob}_verdict"])
        text = f"{_span(rows[f'requested_{knob}'])} → {_span(rows[f'effective_{knob}'])}"
        return Cell(text, PILLS.get(verdict, "unknown"), 0.55, f"{text}: {verdict}")

    legend = {
        verdict: PILLS[verdict] for verdict in VERDICTS if (effective[f"{knob}_verdict"] == verdict).any()
    }
    names = [f"{collective.strip('_')}\n{words.size_text(size)}" for collective, size in messages]
    return cell_grid([short_name(*setting) for setting in settings], names, cell, legend=legend)


def _effective_table(effective: pd.DataFrame) -> Table:
    rows = []
    for (threads, channel, collective, size), case in words.grouped(effective, [*SETTING, *MESSAGE]):
        row = {
            "configuration": short_name(threads, channel),
            "collective": collective,
            "message_mib": size / 2**20,
        }
        for knob in ("channels", "threads"):
            row[f"{knob} asked"] = _span(case[f"requested_{knob}"])
            row[f"{knob} got"] = _span(case[f"effective_{knob}"])
            row[f"{knob} verdict"] = _worst(case[f"{knob}_verdict"])
        rows.append({**row, "channels in log": _span(case["log_channels"]), "ranks": case["rank"].nunique()})
    caption = "Requested and effective per collective and message size; the worst verdict over ranks"
    frame = pd.DataFrame(rows).apply(lambda column: pd.to_numeric(column) if _all_digits(column) else column)
    return Table(frame, caption, "tables/effective.csv", pills=PILLS, open_rows=40)


def _gemm_blocks(gemm: pd.DataFrame, folder: Path) -> list[Block]:
    if gemm.empty:
        return [Prose("No GEMM could be linked to its operator in these traces.")]
    median_us = gemm.groupby([*GEMM_SHAPE, *SETTING], dropna=False)["median_us"].median().unstack(SETTING)
    weight = gemm.groupby(GEMM_SHAPE, dropna=False)["sum_us"].sum()
    median_us = median_us.loc[weight.sort_values(ascending=False).index]
    figure = save(_gemm_grid(median_us.head(MOST_SHAPES)), folder, "gemm")
    caption = (
        f"Median GEMM time in µs over instances and ranks, {min(len(median_us), MOST_SHAPES)} of "
        f"{len(median_us)} shapes, most time first. The stronger the colour, the slower than the best "
        "configuration for that shape."
    )
    return [Figure(figure, caption, "figures/gemm.png", "tables/gemm.csv"), _gemm_table(gemm)]


def _gemm_grid(median_us: pd.DataFrame) -> Drawing:
    """Rows are shapes, columns configurations; `median_us` holds µs."""
    times_us = median_us.to_numpy(dtype=float)
    slower = times_us / np.nanmin(times_us, axis=1, keepdims=True)
    scale = max(float(np.nanmax(slower)) - 1, 0.25)
    settings = list(median_us.columns)
    shapes = [words.shape_name(shape) for shape in median_us.index]

    def cell(down: int, across: int) -> Cell | None:
        time_us, ratio = times_us[down, across], slower[down, across]
        if np.isnan(time_us):
            return None
        hover = (
            f"{shapes[down]}, {short_name(*settings[across])}: {time_us:.1f} µs, {ratio:.2f} times the best"
        )
        return Cell(
            f"{time_us:.0f}" if len(settings) <= 16 else "", "communication", (ratio - 1) / scale, hover
        )

    return cell_grid(shapes, [short_name(*setting) for setting in settings], cell, legend={})


def _gemm_table(gemm: pd.DataFrame) -> Table:
    figures = ["n", "median_us", "mad_us", "p95_us", "max_us", "cv", "tflops_median"]
    rows = gemm.groupby([*GEMM_SHAPE, *SETTING], dropna=False)[figures].median().reset_index()
    rows.insert(0, "configuration", [short_name(*pair) for pair in rows[SETTING].itertuples(index=False)])
    rows = rows.drop(columns=SETTING).sort_values(["op", "M", "N", "K", "configuration"])
    headings = {"tflops_median": Heading("median rate", "TFLOP/s"), "n": Heading("n per rank", "")}
    return Table(rows, "GEMMs by shape, medians over ranks", "tables/gemm.csv", headings)


def _configs_table(configs: pd.DataFrame) -> Table:
    caption = "Every configuration that was asked for or found, medians over ranks"
    ranks = [f"{row.ranks_found} of {row.ranks_expected}" for row in configs.itertuples()]
    shown = configs[CONFIG_COLUMNS].assign(ranks=ranks).rename(columns={"log_channels": "channels in log"})
    told = [name for name in shown if not (shown[name].isna() | (shown[name] == "")).all()]
    return Table(shown[told], caption, "tables/configs.csv", pills=PILLS, open_rows=80)


def _settings(frame: pd.DataFrame) -> list[tuple[int, int]]:
    return sorted({(int(threads), int(channel)) for threads, channel in frame[SETTING].to_numpy()})


def _label(configs: pd.DataFrame, threads: int, channel: int) -> str:
    """The configuration's name, with what is wrong with it where no repeat is complete."""
    states = configs.loc[(configs[SETTING] == [threads, channel]).all(axis=1), "status"]
    return short_name(threads, channel) + ("" if (states == "ok").any() else f" {states.iloc[0]}")


def _worst(verdicts: pd.Series) -> str:
    return str(max(verdicts, key=VERDICTS.index))


def _span(values: pd.Series) -> str:
    """`27`, or `27–28` where ranks or repeats differ, or a dash where nothing is known."""
    known = values[values > 0]
    if known.empty:
        return "–"
    low, high = int(known.min()), int(known.max())
    return str(low) if low == high else f"{low}–{high}"


def _all_digits(column: pd.Series) -> bool:
    return bool(column.map(lambda value: isinstance(value, str) and value.isdigit()).all())


def _unlinked(timeline: pd.DataFrame) -> list[str]:
    unlinked, kernels = int(timeline["unlinked_kernels"].sum()), int(timeline["kernels"].sum())
    if not unlinked:
        return []
    return [
        f"{unlinked} of {kernels} kernels have no launch record in their trace: they count as time on the "
        "device, but no operator and no GEMM could be named for them."
    ]


def _terminal(sentences: Sequence[str], configs: pd.DataFrame, page: Path) -> str:
    columns = [
        *SETTING,
        "repeat",
        "status",
        "computation_time_ms",
        "exposed_comm_time_ms",
        "idle_time_ms",
        "total_time_ms",
    ]
    lines = [sentences[0], *(f"- {sentence}" for sentence in sentences[1:])]
    return "\n".join([*lines, "", terminal_table(configs[columns]), "", f"report: {page}"])
