"""The nan room's tables -> CSV files, figures and one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lab.core.plan import Findings
from lab.core.words import plural
from lab.report.figures import Cell, cell_grid, save, stacked_bars
from lab.report.page import write_page
from lab.report.parts import Block, Card, Figure, Page, Points, Prose, Section, Status, Table
from lab.report.tables import write_csv
from lab.report.terminal import Heading
from lab.rooms.nan.analyze import LINKS, OUTPUTS, RANKING, SASS, TERMINAL, NanTables
from lab.rooms.nan.guarded.page import on_terminal
from lab.rooms.nan.nixnan.tables import SassTables
from lab.rooms.nan.sentences import sentences
from lab.rooms.nan.verdict import SEVERITY

QUESTION = "Where is the first NaN or infinity born, how far does it get, and which change keeps it away?"
TABLES = ("experiments", "chain", "applied", "births", "layers", "functions")
FOOTNOTES = (
    "A rank is a rank of verdicts, never of counts. Verdicts from good to bad: clean, subnormal-only and "
    "masked-intermediate (one grade: nothing left a kernel), stored, reached-module, reached-logits. An "
    "experiment that failed, was skipped or changed nothing has no rank.",
    "Counts at the Python level are over distinct output tensors: a NaN that passes through three modules in "
    "one tensor counts once. A leaf is one tensor going into or out of one call; a bad leaf holds a NaN or "
    "an infinity. Masks and caches are not counted as leaves.",
    "The first producer is the first bad leaf in the order of time. If that leaf is a child's input and no "
    "module put it out, the parent's own code made it: in the parent, after one child, before the next.",
    "A line of nixnan is one distinct (instruction, mask of kinds, operand), not an occurrence; a site is "
    "(function, SASS, operand). Unique and repeats are from the tool's own report. Half is f16 and bf16 "
    "together.",
    "Headroom is the largest magnitude as a share of the largest number of its type.",
    "The Python level sees values at module boundaries only.",
)

MOST_BARS = 12
_OF_PILL = {
    "ok": "ok, clean, complete, applied, loaded as asked, masked-intermediate, subnormal-only",
    "warn": "stored, no-effect, truncated, skipped, twin, torn, reached-module",
    "fail": "failed, oom, timeout, interrupted, missing, broken, invalid, reached-logits, inconsistent",
    "unknown": "unreadable, empty",
}
PILLS = {word: pill for pill, words in _OF_PILL.items() for word in words.split(", ")}
HEADINGS = {
    "nan": Heading("NaN in outputs", ""),
    "inf": Heading("Inf in outputs", ""),
    "bad_leaves": Heading("bad leaves", ""),
    "sass_nan_lines": Heading("NaN lines", ""),
    "sass_lines": Heading("lines", ""),
    "sass_sites": Heading("sites", ""),
    "sass_integrity": Heading("log", ""),
}
LINK_TITLES = [
    "seen in\ninstructions",
    "stored to\nmemory",
    "in a module's\noutput",
    "in the\nlogits",
    "text\nchanged",
]
SASS_CAPTIONS = {
    "sass_instructions": "Instructions by opcode, operand and kinds",
    "sass_classes": "Sites by what happened there: birth (in the result only), transit (in a source too), "
    "source-only (in a source only: it ends there, or its producer is not instrumented)",
    "sass_causes": "Causes that the instructions suggest, each with a line that shows it",
    "sass_differences": "Sites compared with the baseline's",
    "sass_integrity": "Each log against its own report",
}


def report(
    tables: NanTables,
    sass: SassTables,
    *,
    out: Path,
    title: str,
    provenance: dict[str, dict[str, str]],
    kind: str,
    lacking: list[str],
) -> Findings:
    """Write tables/*.csv, figures/*.png and report.html into `out`. Raises StorageError if that fails."""
    frames = {name: getattr(tables, name) for name in TABLES} | sass.frames
    files = [
        write_csv(frame, out / "tables" / f"{name}.csv")
        for name, frame in frames.items()
        if len(frame) or name == "experiments"
    ]
    verdict, status = [*sentences(tables), *sass.sentences], _status(tables, lacking)
    page = Page(
        title=title,
        question=QUESTION,
        verdict=verdict,
        status=status,
        cards=_cards(tables),
        sections=_sections(tables, sass, out / "figures"),
        provenance=provenance,
        footnotes=FOOTNOTES,
        room="nan",
        kind=kind,
    )
    files += [out / png for png in page.pictures]
    files.append(write_page(page, out / "report.html"))
    return Findings(verdict, status, files, _terminal(tables, verdict, files[-1]), lacking)


def _terminal(tables: NanTables, verdict: Sequence[str], page: Path) -> str:
    return on_terminal(verdict, tables.experiments[TERMINAL].dropna(axis=1, how="all"), page)


def _status(tables: NanTables, lacking: Sequence[str]) -> Status:
    """ok if all were compared and nothing left a kernel; fail if nothing can be compared."""
    able = tables.experiments[tables.experiments["rank"].notna()]
    if able.empty:
        return "fail"
    harm = any(SEVERITY[verdict] > 0 for verdict in able["verdict"])
    unreadable = any(experiment.log_error for experiment in tables.evidence)
    doubts = len(able) < len(tables.experiments) or unreadable
    return "warn" if harm or doubts or lacking else "ok"


def _cards(tables: NanTables) -> list[Card]:
    frame, source = tables.experiments, "tables/experiments.csv"
    able = int(frame["rank"].notna().sum())
    cards = [Card("Comparable experiments", f"{able} of {len(frame)}", source)]
    reached = frame[frame["verdict"].isin([name for name, grade in SEVERITY.items() if grade >= 2])]
    if len(reached):
        names = ", ".join(reached["experiment"])
        cards.append(Card("Experiments with bad module outputs", str(len(reached)), source, note=names))
    for experiment in tables.evidence:
        if (birth := experiment.birth) and len(cards) < 6:
            cause = tables.causes[experiment.label].text if experiment.label in tables.causes else ""
            note = "; ".join(filter(None, [birth["place"], cause, f"{birth['phase']}, step {birth['step']}"]))
            module = birth["module"].rsplit(".", 1)[-1] or "the model"
            cards.append(Card(f"First producer, {experiment.label}", module, "tables/births.csv", note=note))
    return cards


def _sections(tables: NanTables, sass: SassTables, folder: Path) -> list[Section]:
    experiments, layers = tables.experiments, tables.layers.drop(columns=["numel"])
    bad_step = layers["first_bad_step"]
    layers = layers.assign(first_bad_step=bad_step.where(bad_step >= 0).astype("Int64"))
    further = "What the outputs held, how sure the cause is, and the text against the baseline's"
    proof = (
        "What each experiment changed, and the proof: modules that took the change, values altered, how "
        "far the first logits moved"
    )
    worst = "The worst line of each site, as it stands in its log; sites with NaN first, then by lines"
    blocks: dict[str, Sequence[Block]] = {
        "Ranking": [
            *_table(
                experiments[RANKING],
                "experiments",
                "Every experiment that was asked for or found; only what ran and took effect is compared",
            ),
            *_table(experiments[OUTPUTS], "experiments", further),
        ],
        "How far bad numbers got": _chain(tables, folder),
        "First producers": _births(tables),
        "Layers": _table(layers, "layers", "Every layer of every experiment", open_rows=24),
        "Instructions and kernels": _instructions(tables, sass, folder),
        "What ran: requested and effective": _table(tables.applied, "applied", proof),
        "Evidence: nixnan's own lines": _table(
            sass.frames["sass_evidence"], "sass_evidence", worst, open_rows=12, limit=300
        ),
        "What nixnan cannot see": [Points(sass.coverage)] if sass.coverage else [],
        "Problems": [Points(tables.problems)] if tables.problems else [],
    }
    return [Section(title, list(parts)) for title, parts in blocks.items() if parts]


def _table(
    frame: pd.DataFrame, name: str, caption: str, *, open_rows: int = 40, limit: int = 400
) -> list[Block]:
    """The columns with something in them, of tables/{name}.csv; no block without rows."""
    if frame.empty:
        return []
    shown: pd.DataFrame = frame.loc[:, ~(frame.isna() | (frame == "")).all()]
    return [Table(shown, caption, f"tables/{name}.csv", HEADINGS, PILLS, open_rows, limit)]


def _chain(tables: NanTables, folder: Path) -> list[Block]:
    """How far bad numbers got in each experiment, as a grid and as a table."""
    labels = list(tables.chains)
    roles = {"yes": "fail", "no": "ok", "?": "unknown"}

    def cell(down: int, across: int) -> Cell | None:
        state, evidence = getattr(tables.chains[labels[down]], LINKS[across])
        harmless = state == "yes" and LINKS[across] in ("instruction", "text")
        shown = "unknown" if state == "?" else state
        return Cell(shown, "warn" if harmless else roles[state], 0.55, f"{labels[down]}: {evidence}")

    legend = {"no": "ok", "yes": "fail", "yes, harmless by itself": "warn", "unknown": "unknown"}
    drawing = cell_grid(labels, LINK_TITLES, cell, legend=legend)
    caption = "From instruction to text: the last red link is the verdict; hover over a cell for its number."
    return [
        Figure(save(drawing, folder, "chain"), caption, "figures/chain.png", "tables/chain.csv"),
        Table(tables.chain, "The numbers behind each link", "tables/chain.csv", open_rows=0),
    ]


def _births(tables: NanTables) -> list[Block]:
    """Where finite inputs gave NaN or infinity, with the cause of each experiment's first birth."""
    watched = sum(bool(experiment.watch) for experiment in tables.evidence)
    if tables.births.empty:
        none = f"No watched module of {plural(watched, 'experiment')} took or gave a NaN or an infinity."
        return [Prose(none)] if watched else []
    steps = tables.births.groupby(["experiment", "place", "phase"], sort=False)["step"]
    frame = steps.agg(["min", "count"]).reset_index().rename(columns={"min": "first step", "count": "steps"})
    first_places = {experiment.label: experiment.birth.get("place") for experiment in tables.evidence}
    causes = [
        tables.causes.get(label) if first_places[label] == place else None
        for label, place in zip(frame["experiment"], frame["place"], strict=True)
    ]
    for index, name in enumerate(("cause", "confidence", "evidence")):
        frame[name] = [cause[index] if cause else "" for cause in causes]
    caption = "Where finite inputs gave NaN or infinity; the cause is given for each experiment's first place"
    return [Table(frame, caption, "tables/births.csv", open_rows=30)]


def _instructions(tables: NanTables, sass: SassTables, folder: Path) -> list[Block]:
    """nixnan's counts, one row per logged experiment, the functions behind them, and what each log says."""
    counted = tables.experiments[tables.experiments["sass_integrity"].fillna("") != ""][SASS]
    caption = (
        "nixnan's counts by experiment; they only compare between experiments that generate the same length"
    )
    blocks = [*_table(counted, "experiments", caption), *_functions(tables, folder)]
    for name, caption in SASS_CAPTIONS.items():
        blocks += _table(sass.frames[name], name, caption, open_rows=30)
    return blocks


def _functions(tables: NanTables, folder: Path) -> list[Block]:
    """Bars of NaN lines by category for each experiment that was logged."""
    frame = tables.functions[tables.functions["twin_of"] == ""]
    if frame.empty:
        return []
    by = frame.groupby(["experiment", "category"], sort=False)[["lines", "nan_lines"]].sum().reset_index()
    by = by.head(3 * MOST_BARS)
    keys = [f"{row.experiment}: {row.category}" for row in by.itertuples()]
    nan_lines = by["nan_lines"].to_numpy(float)
    drawing = stacked_bars(
        keys,
        {"fail": nan_lines, "memcpy": by["lines"].to_numpy(float) - nan_lines},
        axis="lines of nixnan",
        words={"fail": "with NaN", "memcpy": "infinity, subnormal or division by 0 only"},
    )
    caption = "Lines by kernel category. Device functions that repeat a kernel's entries are left out."
    png = save(drawing, folder, "categories")
    return [
        Figure(png, caption, "figures/categories.png", "tables/functions.csv"),
        Table(tables.functions, "Functions as nixnan names them", "tables/functions.csv"),
    ]
