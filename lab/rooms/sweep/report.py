"""The sweep's tables -> CSV files, figures, one page, and a verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

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
FOOTNOTES = (
    "Computation, exposed communication, exposed copies and idle time add up to the total time of a rank: "
    "communication and copies count only where no computation runs beside them.",
    "Total time runs from the first start to the last end on the device inside the profiled window.",
    "Effective channels are grid[0] and effective threads block[0] of each collective's kernel. A block of the "
    "requested threads plus one warp (32) counts as honoured, as NCCL adds a warp of its own.",
    "A message's size is its total over all ranks: the output of an all-gather, the input of a reduce-scatter.",
    "GEMMs are grouped by launching operator, shape, strides and dtype, never by kernel name.",
)


@dataclass(frozen=True)
class Findings:
    """What the report found; `best` is None where no configuration may be called the best."""

    verdict: list[str]
    status: Status
    best: Contender | None
    files: list[Path]
    terminal: str


def report(
    tables: SweepTables,
    *,
    out: Path,
    title: str,
    provenance: dict[str, dict[str, str]],
    kind: str = "measured",
) -> Findings:
    """Write `out/tables/*.csv`, `out/figures/*.png` and `out/report.html`, and say what they show.

    `kind` is measured, replayed or synthetic. Raises StorageError where `out` cannot be written.
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
        sections=_sections(tables, out / "figures"),
        provenance=provenance,
        footnotes=[*FOOTNOTES, *_unlinked(tables.timeline)],
        room="sweep",
        kind=kind,
    )
    files += [out / block.png for section in page.sections for block in section.blocks if isinstance(block, Figure)]
    files.append(write_page(page, out / "report.html"))
    best = ranked[0] if ranked and not words.on_cpu(tables.timeline) and not _tied(ranked) else None
    return Findings(sentences, status, best, files, _terminal(sentences, tables.configs, files[-1]))


def _verdict(tables: SweepTables, ranked: list[Contender], kind: str) -> list[str]:
    cpu = words.on_cpu(tables.timeline)
    head = words.cpu_only(ranked) if cpu else [words.headline(ranked), words.certainty(ranked)]
    settings = [] if cpu else [line for knob in ("channels", "threads") for line in words.obeyed(tables.effective, knob)]
    origin = [] if kind == "measured" else [f"The numbers are {kind}, not measured on this run's hardware."]
    found = [
        *head,
        *origin,
        words.exposed_share(tables.configs),
        words.gemm_change(tables.gemm, tables.configs),
        *words.straggler(tables.timeline),
        *settings,
        *words.absent(tables.configs),
    ]
    return [sentence for sentence in found if sentence]


def _status(tables: SweepTables, ranked: list[Contender]) -> Status:
    if not ranked:
        return "fail"
    verdicts = set(tables.effective["channels_verdict"]) | set(tables.effective["threads_verdict"])
    doubts = (
        words.on_cpu(tables.timeline),
        len(tables.problems) > 0,
        bool((tables.configs["status"] != "ok").any()),
        bool(verdicts & {"clamped", "ignored"}),
    )
    return "warn" if any(doubts) else "ok"


def _tied(ranked: list[Contender]) -> bool:
    repeated = len(ranked) > 1 and min(len(one.totals_ms) for one in ranked[:2]) > 1
    return repeated and not words.separated(ranked)


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
    rows = configs[(configs["status"] == "ok") & (configs[SETTING] == [best.threads, best.channel]).all(axis=1)]
    share = (rows["exposed_comm_time_ms"] / rows["total_time_ms"]).median()
    note = f"of total time, {best.name}"
    return [] if pd.isna(share) else [Card("Exposed communication", f"{100 * share:.0f}", "tables/configs.csv", "%", note)]


def _gemm_card(gemm: pd.DataFrame) -> list[Card]:
    if gemm.empty:
        return []
    totals_ms = gemm.groupby([*SETTING, "repeat", "rank"])["sum_us"].sum().groupby(SETTING).median() / 1000
    low, high = totals_ms.min(), totals_ms.max()
    value = f"{low:.1f}" if len(totals_ms) == 1 else f"{low:.1f}–{high:.1f}"
    return [Card("GEMM time per rank", value, "tables/gemm.csv", "ms", "median over ranks, all configurations")]


def _obeyed_card(effective: pd.DataFrame, knob: str) -> list[Card]:
    judged = effective[effective[f"{knob}_verdict"] != "unknown"]
    cases = judged.groupby([*SETTING, "collective", "msg_bytes"])[f"{knob}_verdict"]
    if not len(cases):
        return []
    honoured = int(cases.apply(lambda verdicts: bool((verdicts == "honoured").all())).sum())
    note = "configurations × collectives × sizes"
    return [Card(f"{knob.capitalize()} honoured", f"{honoured} of {len(cases)}", "tables/effective.csv", note=note)]


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
    steps = sorted(set(timeline["steps"]))
    axis = f"ms per rank, {' or '.join(map(str, steps))} profiled steps"
    shown = timeline.drop(columns=["file"])
    return [
        _figure(_config_bars(tables, axis), folder, "timeline", "timeline",
                "Mean over ranks of the four parts of the total time; diamond: median total time over ranks, "
                "whisker: smallest and largest rank."),
        _figure(_rank_panels(timeline), folder, "timeline_ranks", "timeline",
                "Each rank on its own, one scale. A rank with little communication beside ranks with much of it "
                "is the one that the others wait for."),
        Table(shown, "Time of every rank", "tables/timeline.csv"),
    ]  # fmt: skip


def _config_bars(tables: SweepTables, axis: str) -> object:
    settings = _settings(tables.configs)
    groups = tables.timeline.groupby(SETTING)
    means = groups[list(PARTS.values())].mean().reindex(settings)
    totals = groups["total_time_ms"].agg(["min", "median", "max"]).reindex(settings)
    labels = [_label(tables.configs, *setting) for setting in settings]
    marks = [tuple(map(float, row)) for row in totals.to_numpy()]
    parts = {role: means[column].to_numpy() for role, column in PARTS.items()}
    return stacked_bars(labels, parts, axis=axis, marks=marks, mark_label="total, over ranks")
