"""The sweep's tables -> CSV files, figures, one page, and a verdict as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from lab.core.plan import Findings
from lab.core.words import plural
from lab.report.page import write_page
from lab.report.parts import Card, Page, Section, Status, Table
from lab.report.tables import terminal_table, write_csv
from lab.rooms.sweep.blocks import PILLS, effective_blocks, gemm_blocks, time_blocks
from lab.rooms.sweep.ranks.verdict import Settings, bound_by_hosts, ranking, stragglers, who_wins
from lab.rooms.sweep.tables import PARTS, SETTING, SweepTables, shown
from lab.rooms.sweep.unprofiled import sentences as unprofiled_sentences
from lab.rooms.sweep.verdict import (
    ON_CPU,
    ORIGIN,
    UNPROFILED,
    StepTimes,
    exposed_share,
    exposed_shares,
    gemm_change,
    gemm_totals_ms,
    headline,
    honoured,
    knobs_of,
    left_out,
    on_cpu,
    starved,
    step_times,
    uneven_steps,
    unproven,
)

QUESTION = "Which NCCL or RCCL setting starves the GEMMs, why, and did the setting take effect at all?"
TABLES = ("timeline", "effective", "gemm", "configs", "problems")
MOST_SENTENCES = 5
CONFIG_COLUMNS = [
    *[*SETTING, "repeat", "status", "reason", "total_time_ms", *PARTS.values(), "slowest_rank"],
    *["channels_verdict", "threads_verdict", "algorithm_verdict", "protocol_verdict", "log_channels"],
]
TERMINAL_COLUMNS = [
    *[*SETTING, "repeat", "status"],
    *["computation_time_ms", "exposed_comm_time_ms", "idle_time_ms", "total_time_ms"],
]
FOOTNOTES = (
    "Computation, exposed communication, exposed copies and idle time add up to the total time of a rank: "
    "communication and copies count only where no computation runs beside them.",
    "Total time runs from the first start to the last end on the device within the profiled window.",
    "Effective channels are grid[0] and effective threads block[0] of each collective's kernel. A block of "
    "the requested threads plus one warp (32) counts as honoured, because NCCL adds a warp of its own.",
    "Algorithm and protocol are those in NCCL's own log; without its lines the block tells some of them.",
    "A message's size is its total over ranks: the output of an all-gather, the input of a reduce-scatter.",
    "GEMMs are grouped by launching operator, shape, strides and dtype, never by kernel name.",
)


def report(
    tables: SweepTables,
    *,
    out: Path,
    title: str,
    provenance: dict[str, dict[str, str]],
    kind: str = "measured",
    further: Sequence[Section] = (),
    ranks: Settings | None = None,
    unprofiled: pd.DataFrame | None = None,
) -> Findings:
    """Write `out/tables/*.csv`, `out/figures/*.png` and `out/report.html`, and say what they show.

    kind is measured, replayed or synthetic; further: sections that follow the sweep's own; ranks: the account
    of each setting; unprofiled: the rows of `unprofiled_table`.
    Raises StorageError if `out` cannot be written.
    """
    files = [write_csv(getattr(tables, name), out / "tables" / f"{name}.csv") for name in TABLES]
    times = step_times(tables, unprofiled)
    steady = [] if unprofiled is None else unprofiled_sentences(unprofiled)
    lacking = [*left_out(tables.configs), *unproven(tables.effective, tables.configs)]
    sentences = _verdict(tables, times, kind, ranks or {}, lacking, steady)
    status = _status(tables, lacking)
    files.append(write_csv(pd.DataFrame({"finding": sentences}), out / "tables" / "findings.csv"))
    page = Page(
        title=title,
        question=QUESTION,
        verdict=sentences[:MOST_SENTENCES],
        status=status,
        cards=[*_cards(tables, times)],
        sections=[*_more_findings(sentences), *_sections(tables, out / "figures"), *further],
        provenance=provenance,
        footnotes=[*FOOTNOTES, *_doubts(tables.timeline)],
        room="sweep",
        kind=kind,
    )
    files += [out / png for png in page.pictures]
    files.append(write_page(page, out / "report.html"))
    incomplete = [
        f"{row.file}: {row.recording}" for row in tables.timeline.itertuples() if row.recording != "complete"
    ]
    terminal = _terminal(sentences, tables.configs, files[-1])
    return Findings(sentences, status, files, terminal, lacking=lacking, incomplete=incomplete)


def _verdict(
    tables: SweepTables,
    times: StepTimes,
    kind: str,
    ranks: Settings,
    lacking: Sequence[str],
    steady: Sequence[str],
) -> list[str]:
    """All sentences, most important first; the first MOST_SENTENCES are the page's verdict."""
    gpu = not on_cpu(tables.timeline)
    uneven = _uneven(tables, times)
    of_ranks = stragglers(ranks)
    of_settings = [*_of_settings(tables)] if gpu else []
    incomplete = [text if text.endswith(".") else f"{text}." for text in lacking]
    sentences = [
        bound_by_hosts(ranks),  # before any comparison of settings
        uneven or (headline(times) if gpu or not times.ranked else ON_CPU),
        ORIGIN.get(kind),
        *incomplete[:1],
        *of_ranks[:1],
        *of_settings[:1],
        *steady,
        who_wins(ranking(ranks)),
        exposed_share(tables.configs),
        *of_settings[1:],
        *of_ranks[1:],
        *incomplete[1:],
    ]
    return [sentence for sentence in sentences if sentence]


def _uneven(tables: SweepTables, times: StepTimes) -> str | None:
    """Why profiled step times do not compare, if they do not."""
    return None if times.source == UNPROFILED else uneven_steps(tables.timeline, tables.configs)


def _of_settings(tables: SweepTables) -> Iterator[str]:
    """What the settings did; only runs on a GPU can show that."""
    if change := gemm_change(tables.gemm, tables.configs):
        yield change
    yield from starved(tables.gemm, tables.configs)
    for knob in knobs_of(tables.effective):
        yield from honoured(tables.effective, knob)


def _cards(tables: SweepTables, times: StepTimes) -> Iterator[Card]:
    configs, ranked = tables.configs, times.ranked
    source = "tables/unprofiled.csv" if times.source == UNPROFILED else "tables/configs.csv"
    if len(ranked) > 1 and not on_cpu(tables.timeline) and not _uneven(tables, times):
        for title, setting in (("Fastest", ranked[0]), ("Slowest", ranked[-1])):
            note = f"{setting.name}{setting.interval}, {times.source}"
            yield Card(title, f"{setting.mean_ms:.1f}", source, "ms per step", note)
    shares = exposed_shares(configs)
    if ranked and ranked[0].knobs in shares.index:
        best, share = ranked[0], shares[ranked[0].knobs]
        note = f"of total time, {best.name}"
        yield Card("Exposed communication", f"{100 * share:.0f}", "tables/configs.csv", "%", note)
    totals_ms = gemm_totals_ms(tables.gemm, configs)
    if len(totals_ms):
        low, high = f"{totals_ms.iloc[0]:.1f}", f"{totals_ms.iloc[-1]:.1f}"
        value = low if len(totals_ms) == 1 else f"{low}–{high}"
        note = "median over ranks, all configurations"
        yield Card("GEMM time per rank", value, "tables/gemm.csv", "ms", note)
    for knob in knobs_of(tables.effective):
        judged = tables.effective[tables.effective[f"{knob}_verdict"] != "unknown"]
        cases = judged.groupby([*SETTING, "collective", "msg_bytes"])[f"{knob}_verdict"]
        if len(cases):
            are_honoured = int(cases.apply(lambda verdicts: bool((verdicts == "honoured").all())).sum())
            value, note = f"{are_honoured} of {len(cases)}", "configurations × collectives × sizes"
            yield Card(f"{knob.capitalize()} honoured", value, "tables/effective.csv", note=note)
    complete = int((configs["status"] == "ok").sum())
    yield Card("Complete runs", f"{complete} of {len(configs)}", "tables/configs.csv")


def _more_findings(sentences: Sequence[str]) -> list[Section]:
    """What the verdict has no room for, folded."""
    remaining = pd.DataFrame({"finding": sentences[MOST_SENTENCES:]})
    table = Table(remaining, "More findings", "tables/findings.csv", open_rows=0)
    return [Section("More findings", [table])] if len(remaining) else []


def _status(tables: SweepTables, lacking: Sequence[str]) -> Status:
    if not (tables.configs["status"] == "ok").any():
        return "fail"
    verdicts = {
        verdict for knob in knobs_of(tables.effective) for verdict in tables.effective[f"{knob}_verdict"]
    }
    doubts = (
        on_cpu(tables.timeline),
        uneven_steps(tables.timeline, tables.configs),
        len(tables.problems),
        lacking,
        verdicts & {"clamped", "ignored"},
    )
    return "warn" if any(doubts) else "ok"


def _sections(tables: SweepTables, folder: Path) -> list[Section]:
    sections = [
        Section("Where the time goes", time_blocks(tables, folder)),
        Section("Requested and effective", effective_blocks(tables, folder)),
        Section("GEMMs", gemm_blocks(tables.gemm, folder)),
        Section("Configurations", [_configs_table(tables.configs)]),
    ]
    if len(tables.problems):
        caption = "What could not be read, and other problems"
        sections.append(Section("Problems", [Table(shown(tables.problems), caption, "tables/problems.csv")]))
    return [section for section in sections if section.blocks]


def _configs_table(configs: pd.DataFrame) -> Table:
    caption = "Every configuration that was requested or found, medians over ranks"
    ranks = [f"{row.ranks_found} of {row.ranks_expected}" for row in configs.itertuples()]
    columns = configs[CONFIG_COLUMNS].assign(ranks=ranks).rename(columns={"log_channels": "channels in log"})
    filled = [name for name in columns if not (columns[name].isna() | (columns[name] == "")).all()]
    return Table(columns[filled], caption, "tables/configs.csv", pills=PILLS, open_rows=12)


def _doubts(timeline: pd.DataFrame) -> Iterator[str]:
    unlinked, kernels = int(timeline["unlinked_kernels"].sum()), int(timeline["kernels"].sum())
    if unlinked:
        yield (
            f"{unlinked:,} of {plural(kernels, 'kernel')} have no launch record in their trace: they count "
            "as time on the device, but their operators and GEMMs are unknown."
        )
    doubtful = int((timeline["recording"] != "complete").sum())
    if doubtful:
        yield (
            f"{doubtful} of {plural(len(timeline), 'trace')} are not complete (column `recording` of the "
            "timeline, which also says which times are bounds): `lab inspect` says what is missing."
        )


def _terminal(sentences: Sequence[str], configs: pd.DataFrame, page: Path) -> str:
    lines = [sentences[0], *(f"- {sentence}" for sentence in sentences[1:])]
    return "\n".join([*lines, "", terminal_table(shown(configs[TERMINAL_COLUMNS])), "", f"report: {page}"])
