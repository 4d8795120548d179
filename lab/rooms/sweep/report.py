"""The sweep's tables -> CSV files, figures, one page, and a verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lab.core import plan
from lab.core.words import plural
from lab.report.page import write_page
from lab.report.parts import Page, Section, Status, Table
from lab.report.tables import terminal_table, write_csv
from lab.rooms.sweep.blocks.cards import cards
from lab.rooms.sweep.blocks.configurations import configs_table
from lab.rooms.sweep.blocks.effective import effective_blocks
from lab.rooms.sweep.blocks.gemms import gemm_blocks
from lab.rooms.sweep.blocks.timeline import time_blocks
from lab.rooms.sweep.tables import SETTING, SweepTables, shown
from lab.rooms.sweep.verdict.gemms import gemm_change, starved
from lab.rooms.sweep.verdict.honoured import honoured, knobs_of, unproven
from lab.rooms.sweep.verdict.ranking import Contender, certainty, contenders, headline, tied, uneven_steps
from lab.rooms.sweep.verdict.ranks import Settings, bound_by_hosts, ranking, stragglers, who_wins
from lab.rooms.sweep.verdict.time import copied, cpu_only, exposed_share, left_out, on_cpu, origin

QUESTION = "Which NCCL or RCCL setting starves the GEMMs, why, and did the setting take effect at all?"
TABLES = ("timeline", "effective", "gemm", "configs", "problems")
MOST_SENTENCES = 5
TERMINAL_MS = ["computation_time_ms", "exposed_comm_time_ms", "idle_time_ms", "total_time_ms"]
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


class Findings(plan.Findings, frozen=True):
    """What the report found; `best` is the fastest, None on a tie, on a CPU or without a result."""

    best: Contender | None = None


def report(
    tables: SweepTables,
    *,
    out: Path,
    title: str,
    provenance: dict[str, dict[str, str]],
    kind: str = "measured",
    further: Sequence[Section] = (),
    ranks: Settings | None = None,
    outcome: Sequence[str] = (),
) -> Findings:
    """Write `out/tables/*.csv`, `out/figures/*.png` and `out/report.html`, and say what they show.

    `kind` is measured, replayed or synthetic; `more` are sections that follow the sweep's own; `ranks` is the
    account of each setting, where there is one; `outcome` what the unprofiled steps say. Raises
    StorageError if `out` cannot be written.
    """
    files = [write_csv(getattr(tables, name), out / "tables" / f"{name}.csv") for name in TABLES]
    ranked = contenders(tables.configs)
    sentences, status = _verdict(tables, ranked, kind, ranks or {}, outcome), _status(tables, ranked)
    files.append(write_csv(pd.DataFrame({"finding": sentences}), out / "tables" / "findings.csv"))
    page = Page(
        title=title,
        question=QUESTION,
        verdict=sentences[:MOST_SENTENCES],
        status=status,
        cards=cards(tables, ranked),
        sections=[*_more_findings(sentences), *_sections(tables, out / "figures"), *further],
        provenance=provenance,
        footnotes=[*FOOTNOTES, *_unlinked(tables.timeline), *_not_complete(tables.timeline)],
        room="sweep",
        kind=kind,
    )
    files += [out / png for png in page.pictures]
    files.append(write_page(page, out / "report.html"))
    terminal = _terminal(sentences, tables.configs, files[-1])
    return Findings(
        sentences,
        status,
        files,
        terminal,
        best=_best(tables, ranked),
        lacking=[
            *left_out(tables.configs),
            *copied(tables.configs),
            *unproven(tables.effective, tables.configs),
        ],
        incomplete=[
            f"{row.file}: {row.recording}"
            for row in tables.timeline.itertuples()
            if row.recording != "complete"
        ],
    )


def _more_findings(sentences: Sequence[str]) -> list[Section]:
    """What the verdict has no room for, folded."""
    remaining = pd.DataFrame({"finding": sentences[MOST_SENTENCES:]})
    table = Table(remaining, "More findings", "tables/findings.csv", open_rows=0)
    return [Section("More findings", [table])] if len(remaining) else []


def _verdict(
    tables: SweepTables, ranked: list[Contender], kind: str, ranks: Settings, outcome: Sequence[str]
) -> list[str]:
    """All sentences; the first MOST_SENTENCES are the page's verdict.

    One setting is called fastest once: by steps without the profiler where there are enough of them.
    """
    headlines = _headlines(tables, ranked)
    by_steps = any("ms per step" in text for text in outcome)
    gpu = not on_cpu(tables.timeline)
    of_ranks = stragglers(ranks)
    of_settings = _of_settings(tables) if gpu else []
    incomplete = [*left_out(tables.configs), *copied(tables.configs)]
    incomplete += [f"{text}." for text in unproven(tables.effective, tables.configs)]
    sentences = [
        bound_by_hosts(ranks),  # before any comparison of settings
        *(outcome[:1] if by_steps else headlines[:1]),
        origin(kind),
        *([] if by_steps else headlines[1:]),
        incomplete[0] if incomplete else None,
        of_ranks[0] if of_ranks else None,
        *of_settings[:1],
        *(outcome[1:] if by_steps else outcome),
        who_wins(ranking(ranks)),
        exposed_share(tables.configs),
        *of_settings[1:],
        *of_ranks[1:],
        *incomplete[1:],
    ]
    return [sentence for sentence in sentences if sentence]


def _of_settings(tables: SweepTables) -> list[str | None]:
    """What the settings did; only runs on a GPU can show that."""
    return [
        gemm_change(tables.gemm, tables.configs),
        *starved(tables.gemm, tables.configs),
        *(text for knob in knobs_of(tables.effective) for text in honoured(tables.effective, knob)),
    ]


def _headlines(tables: SweepTables, ranked: list[Contender]) -> list[str | None]:
    if ranked and on_cpu(tables.timeline):
        return [*cpu_only(ranked)]
    uneven = uneven_steps(tables.timeline, tables.configs)
    steps = int(max(tables.timeline["steps"], default=1)) or 1
    return [uneven] if uneven else [headline(ranked, steps), certainty(ranked)]


def _best(tables: SweepTables, ranked: list[Contender]) -> Contender | None:
    uneven = uneven_steps(tables.timeline, tables.configs)
    barred = on_cpu(tables.timeline) or uneven or tied(ranked)
    return ranked[0] if ranked and not barred else None


def _status(tables: SweepTables, ranked: list[Contender]) -> Status:
    if not ranked:
        return "fail"
    verdicts = {
        verdict for knob in knobs_of(tables.effective) for verdict in tables.effective[f"{knob}_verdict"]
    }
    doubts = (
        on_cpu(tables.timeline),
        uneven_steps(tables.timeline, tables.configs) is not None,
        len(tables.problems) > 0,
        bool((tables.configs["status"] != "ok").any()),
        bool(verdicts & {"clamped", "ignored"}),
        bool(unproven(tables.effective, tables.configs)),
    )
    return "warn" if any(doubts) else "ok"


def _sections(tables: SweepTables, folder: Path) -> list[Section]:
    sections = [
        Section("Where the time goes", time_blocks(tables, folder)),
        Section("Requested and effective", effective_blocks(tables, folder)),
        Section("GEMMs", gemm_blocks(tables.gemm, folder)),
        Section("Configurations", [configs_table(tables.configs)]),
    ]
    if len(tables.problems):
        caption = "What could not be read, and other problems"
        sections.append(Section("Problems", [Table(shown(tables.problems), caption, "tables/problems.csv")]))
    return [section for section in sections if section.blocks]


def _unlinked(timeline: pd.DataFrame) -> list[str]:
    unlinked, kernels = int(timeline["unlinked_kernels"].sum()), int(timeline["kernels"].sum())
    if not unlinked:
        return []
    return [
        f"{unlinked:,} of {plural(kernels, 'kernel')} have no launch record in their trace: they count as "
        "time on the device, but their operators and GEMMs are unknown."
    ]


def _not_complete(timeline: pd.DataFrame) -> list[str]:
    doubtful = timeline[timeline["recording"] != "complete"]
    if not len(doubtful):
        return []
    return [
        f"{len(doubtful)} of {plural(len(timeline), 'trace')} are not complete (column `recording` of the "
        "timeline, which also says which times are bounds): `lab inspect` says what is missing."
    ]


def _terminal(sentences: Sequence[str], configs: pd.DataFrame, page: Path) -> str:
    columns = [*SETTING, "repeat", "status", *TERMINAL_MS]
    lines = [sentences[0], *(f"- {sentence}" for sentence in sentences[1:])]
    return "\n".join([*lines, "", terminal_table(shown(configs[columns])), "", f"report: {page}"])
