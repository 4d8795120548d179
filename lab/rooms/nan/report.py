"""The nan room's tables -> CSV files, figures and one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from lab.report.figures import Cell, cell_grid, save, stacked_bars
from lab.report.page import Block, Card, Figure, Page, Points, Prose, Section, Status, Table, write_page
from lab.report.tables import Heading, terminal_table, write_csv
from lab.rooms.nan.analyze import NanTables
from lab.rooms.nan.nixnan.tables import SassTables
from lab.rooms.nan.sentences import sentences
from lab.rooms.nan.verdict import LINKS, SEVERITY

QUESTION = "Where is the first NaN or infinity born, how far does it get, and which change keeps it away?"
TABLES = ("experiments", "chain", "applied", "births", "layers", "kernels", "functions")
LINK_NAMES = (
    "seen in\ninstructions",
    "stored to\nmemory",
    "in a module's\noutput",
    "in the\nlogits",
    "text\nchanged",
)
PILLS = {
    **dict.fromkeys(
        ("ok", "clean", "complete", "applied", "loaded as asked", "masked-intermediate", "subnormal-only"),
        "ok",
    ),
    **dict.fromkeys(
        ("stored", "no-effect", "truncated", "skipped", "twin", "torn", "reached-module"), "warn"
    ),
    **dict.fromkeys(
        (
            "failed",
            "oom",
            "timeout",
            "interrupted",
            "missing",
            "broken",
            "invalid",
            "reached-logits",
            "inconsistent",
        ),
        "fail",
    ),
    **dict.fromkeys(("unreadable", "empty"), "unknown"),
}
KINDS = {
    "nan": "NaN",
    "posinf": "+Inf",
    "neginf": "-Inf",
    "subnormal": "subnormal",
    "headroom": "headroom used",
}
MOST_GRIDS, MOST_BARS = 6, 12
RANKING = [
    "rank",
    "experiment",
    "status",
    "verdict",
    "nan",
    "inf",
    "bad_leaves",
    "bad_logit_steps",
    "first_producer",
    "cause",
    "confidence",
    "same_text",
    "characters",
    "kl_mean",
    "top1_agreement",
    "reason",
]
SASS = [
    "experiment",
    "sass_integrity",
    "sass_lines",
    "sass_sites",
    "sass_nan_lines",
    "half_nan_unique",
    "half_nan_repeats",
    "float_nan_unique",
    "float_nan_repeats",
    "half_subnormal_unique",
    "half_subnormal_repeats",
    "memory_nan_lines",
]
HEADINGS = {
    "nan": Heading("NaN in outputs", ""),
    "inf": Heading("Inf in outputs", ""),
    "bad_leaves": Heading("bad leaves", ""),
    "kl_mean": Heading("KL to baseline", "nats"),
    "top1_agreement": Heading("same first choice", "share"),
    "sass_nan_lines": Heading("NaN lines", ""),
    "sass_lines": Heading("lines", ""),
    "sass_sites": Heading("sites", ""),
    "sass_integrity": Heading("log", ""),
}
FOOTNOTES = (
    "A rank is a rank of verdicts, never of counts. Verdicts from good to bad: clean, subnormal-only and masked-intermediate "
    "(one grade: nothing left a kernel), stored, reached-module, reached-logits. What failed, was skipped, or changed nothing has none.",
    "Counts at the Python level are over distinct output tensors: a NaN that passes through three modules in one tensor counts once. "
    "A leaf is one tensor going into or out of one call; a bad leaf holds a NaN or an infinity. Masks and caches are no leaves.",
    "The first producer is the first bad leaf in the order of time. If it is a child's input that no module put out, its parent's own "
    "code made it: in the parent, after one child, before the next.",
    "A line of nixnan is one distinct (instruction, mask of kinds, operand), not an occurrence; a site is (function, SASS, operand). "
    "Unique and repeats are the tool's own report. Half is f16 and bf16 together.",
    "Headroom used is the largest magnitude as a share of the largest number of its type: above one half, warn.",
    "Zero events are no health: nixnan cannot see tensor-core products of Hopper, conversions, 8-bit arithmetic or stores by other "
    "instructions; the Python level sees values at module boundaries only.",
)


@dataclass(frozen=True)
class Findings:
    """What the page found; `lacking` says what was asked for and is not there."""

    verdict: list[str]
    status: Status
    files: list[Path]
    terminal: str
    lacking: list[str]


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
    """Write `out/tables/*.csv`, `out/figures/*.png` and `out/report.html`. Raises StorageError where `out` cannot be written."""
    frames = {name: getattr(tables, name) for name in TABLES} | sass.frames()
    files = [
        write_csv(frame, out / "tables" / f"{name}.csv")
        for name, frame in frames.items()
        if len(frame) or name == "experiments"
    ]
    said, status = [*sentences(tables), *sass.sentences], _status(tables, lacking)
    page = Page(
        title=title,
        question=QUESTION,
        verdict=said,
        status=status,
        cards=_cards(tables),
        sections=_sections(tables, sass, out / "figures"),
        provenance=provenance,
        footnotes=FOOTNOTES,
        room="nan",
        kind=kind,
    )
    blocks = [block for section in page.sections for block in section.blocks]
    files += [out / block.png for block in blocks if isinstance(block, Figure)]
    files.append(write_page(page, out / "report.html"))
    shown = tables.experiments[
        [
            "rank",
            "experiment",
            "status",
            "verdict",
            "bad_leaves",
            "bad_logit_steps",
            "sass_nan_lines",
            "first_producer",
        ]
    ]
    shown = shown.dropna(axis=1, how="all")
    lines = [
        said[0],
        *(f"- {sentence}" for sentence in said[1:]),
        "",
        terminal_table(shown, width=140),
        "",
        f"report: {files[-1]}",
    ]
    return Findings(said, status, files, "\n".join(lines), lacking)


def _status(tables: NanTables, lacking: Sequence[str]) -> Status:
    """ok: all compared and nothing left a kernel; fail: nothing to compare."""
    able = tables.experiments[tables.experiments["rank"].notna()]
    if able.empty:
        return "fail"
    harm = any(SEVERITY[verdict] > 0 for verdict in able["verdict"])
    doubts = len(able) < len(tables.experiments) or any(one.log_error for one in tables.evidence)
    return "warn" if harm or doubts or lacking else "ok"


def _cards(tables: NanTables) -> list[Card]:
    frame, source = tables.experiments, "tables/experiments.csv"
    able = int(frame["rank"].notna().sum())
    cards = [Card("Comparable experiments", f"{able} of {len(frame)}", source)]
    reached = frame[frame["verdict"].isin([name for name, grade in SEVERITY.items() if grade >= 2])]
    if len(reached):
        cards.append(
            Card(
                "Bad numbers leave a module in",
                str(len(reached)),
                source,
                note=", ".join(reached["experiment"]),
            )
        )
    for one in tables.evidence:
        first = (one.watch or {}).get("first")
        if first and len(cards) < 6:
            cause = tables.causes.get(one.label, ("",))[0]
            note = "; ".join(filter(None, [first["place"], cause, f"{first['phase']}, step {first['step']}"]))
            cards.append(
                Card(
                    f"First producer, {one.label}",
                    first["module"].rsplit(".", 1)[-1] or "the model",
                    "tables/births.csv",
                    note=note,
                )
            )
    return cards


def _sections(tables: NanTables, sass: SassTables, folder: Path) -> list[Section]:
    found = [
        Section("Ranking", _ranking(tables)),
        Section("How far bad numbers got", _chain(tables, folder)),
        Section("First producers", _births(tables)),
        Section("Layers", _layers(tables, folder)),
        Section(
            "Instructions and kernels",
            [*_sass_table(tables), *_functions(tables, folder), *sass.blocks(folder)],
        ),
        Section("What ran: requested and effective", _applied(tables)),
        Section("Evidence: nixnan's own lines", sass.evidence_blocks()),
        Section("What nixnan cannot see", sass.coverage_blocks()),
    ]
    if tables.problems:
        found.append(Section("Problems", [Points(tables.problems)]))
    return [section for section in found if section.blocks]


def _ranking(tables: NanTables) -> list[Block]:
    frame = tables.experiments[RANKING]
    told = [name for name in frame if not (frame[name].isna() | (frame[name] == "")).all()]
    caption = "Every experiment that was asked for or found; only what ran and took effect is compared"
    return [Table(frame[told], caption, "tables/experiments.csv", HEADINGS, PILLS, open_rows=40)]


def _chain(tables: NanTables, folder: Path) -> list[Block]:
    labels = list(tables.chains)
    role = {"yes": "fail", "no": "ok", "?": "unknown"}

    def cell(down: int, across: int) -> Cell | None:
        state, words = getattr(tables.chains[labels[down]], LINKS[across])
        mild = state == "yes" and LINKS[across] in ("instruction", "text")
        return Cell(
            {"?": "not known"}.get(state, state),
            "warn" if mild else role[state],
            0.55,
            f"{labels[down]}: {words}",
        )

    drawing = cell_grid(
        labels,
        LINK_NAMES,
        cell,
        legend={"no": "ok", "yes": "fail", "yes, by itself no harm": "warn", "not known": "unknown"},
    )
    caption = "From instruction to text: the furthest link in red is the verdict. Hover a cell for the number behind it."
    return [
        Figure(save(drawing, folder, "chain"), caption, "figures/chain.png", "tables/chain.csv"),
        Table(tables.chain, "The numbers behind each link", "tables/chain.csv", open_rows=0),
    ]


def _births(tables: NanTables) -> list[Block]:
    if tables.births.empty:
        watched = [one for one in tables.evidence if one.watch]
        return (
            [Prose(f"No watched module of {len(watched)} experiments took or gave a NaN or an infinity.")]
            if watched
            else []
        )
    shown = tables.births.groupby(["experiment", "place", "phase"], sort=False)
    frame = (
        shown["step"]
        .agg(["min", "count"])
        .reset_index()
        .rename(columns={"min": "first step", "count": "steps"})
    )
    causes = [tables.causes.get(label, ("", "", "")) for label in frame["experiment"]]
    first = {one.label: (one.watch or {}).get("first", {}) for one in tables.evidence}
    mine = [
        first[label]["place"] == place
        for label, place in zip(frame["experiment"], frame["place"], strict=True)
    ]
    for at, name in enumerate(("cause", "confidence", "evidence")):
        frame[name] = [cause[at] if own else "" for cause, own in zip(causes, mine, strict=True)]
    caption = (
        "Where finite inputs gave NaN or infinity; the cause is told for the first place of each experiment"
    )
    return [Table(frame, caption, "tables/births.csv", open_rows=30)]


def _layers(tables: NanTables, folder: Path) -> list[Block]:
    """One heat map an experiment that has something to show, the baseline's always."""
    layers = tables.layers
    if layers.empty:
        return []
    bad = layers.groupby("experiment", sort=False)[["nan", "posinf", "neginf"]].sum().sum(axis=1)
    base = tables.baseline.label if tables.baseline else layers["experiment"].iloc[0]
    wanted = [label for label in bad.index if bad[label] > 0 or label == base][:MOST_GRIDS]
    blocks: list[Block] = []
    for number, label in enumerate(wanted):
        rows = layers[layers["experiment"] == label]
        if not (
            rows[["nan", "posinf", "neginf", "subnormal"]].to_numpy().any() or rows["headroom"].notna().any()
        ):
            blocks.append(
                Prose(
                    f"{label}: 0 NaN, 0 infinity in the outputs of all {len(rows)} layers; nothing else was counted."
                )
            )
            continue
        name = f"layers_{number}"
        caption = f"{label}: outputs of each layer by kind, all forwards together. Counts in NaN, Inf and subnormal; headroom in percent."
        blocks.append(
            Figure(save(_layer_grid(rows), folder, name), caption, f"figures/{name}.png", "tables/layers.csv")
        )
    return [
        *blocks,
        Table(_shown(layers), "Every layer of every experiment", "tables/layers.csv"),
    ]


def _shown(layers: pd.DataFrame) -> pd.DataFrame:
    """The table of layers as the page has it: no step where there was no bad one."""
    bad = layers["first_bad_step"]
    steps = bad.where(bad >= 0).astype("Int64")
    shown: pd.DataFrame = layers.drop(columns=["numel"]).assign(first_bad_step=steps)
    return shown


def _layer_grid(rows: pd.DataFrame) -> Drawing:
    """Layers down, kinds across and phases beside each other; strength is the share of numbers, on a log scale."""
    phases = list(dict.fromkeys(rows["phase"]))
    names = list(dict.fromkeys(rows["layer"]))
    # NaN and headroom always; of the other kinds, those that there are.
    kinds = [kind for kind in KINDS if kind in ("nan", "headroom") or rows[kind].to_numpy().any()]
    columns = [(phase, kind) for phase in phases for kind in kinds]
    found = rows.set_index(["layer", "phase"])

    def cell(down: int, across: int) -> Cell | None:
        phase, kind = columns[across]
        if (names[down], phase) not in found.index:
            return None
        row = found.loc[(names[down], phase)]
        value = float(row[kind])
        if np.isnan(value):
            return None
        if kind == "headroom":
            return Cell(
                f"{100 * value:.2g} %",
                "warn" if value > 0.5 else "computation",
                min(1.0, value),
                f"{names[down]}, {phase}: |x| up to {row['absmax']:.5g}",
            )
        share = value / max(float(row["numel"]), 1.0)
        role = "memcpy" if kind == "subnormal" else "fail"
        strength = 0.0 if not value else min(1.0, max(0.15, 1 + np.log10(max(share, 1e-6)) / 6))
        hover = f"{names[down]}, {phase}: {value:.0f} {KINDS[kind]} of {row['numel']:.0f}"
        if row["first_bad_step"] >= 0:
            hover += f", first bad step {row['first_bad_step']}"
        return Cell(_short(value), role if value else "idle", strength, hover)

    titles = [f"{KINDS[kind]}\n{phase}" if len(phases) > 1 else KINDS[kind] for phase, kind in columns]
    return cell_grid(
        names,
        titles,
        cell,
        legend={"NaN or infinity": "fail", "subnormal": "memcpy", "headroom used": "computation"},
    )


def _short(value: float) -> str:
    """`12`, `3.4k`, `21M`: what fits a cell."""
    for limit, word in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[word]:.3g}{word}"
    return f"{value:.0f}"


def _sass_table(tables: NanTables) -> list[Block]:
    frame = tables.experiments[tables.experiments["sass_integrity"].fillna("") != ""][SASS]
    if frame.empty:
        return []
    caption = (
        "nixnan by experiment; lines and sites of experiments that generate different lengths do not compare"
    )
    return [Table(frame, caption, "tables/experiments.csv", HEADINGS, PILLS, open_rows=40)]


def _functions(tables: NanTables, folder: Path) -> list[Block]:
    """Bars of NaN lines by category for each experiment that was logged."""
    frame = tables.functions[tables.functions["twin_of"] == ""]
    if frame.empty:
        return []
    by = frame.groupby(["experiment", "category"], sort=False)[["lines", "nan_lines"]].sum().reset_index()
    keys = [f"{row.experiment}: {row.category}" for row in by.itertuples()][: 3 * MOST_BARS]
    by = by.head(len(keys))
    parts = {
        "fail": by["nan_lines"].to_numpy(float),
        "memcpy": (by["lines"] - by["nan_lines"]).to_numpy(float),
    }
    drawing = stacked_bars(
        keys,
        parts,
        axis="lines of nixnan",
        words={"fail": "with NaN", "memcpy": "infinity, subnormal or division by 0 only"},
    )
    caption = "Lines by kernel category. Device functions that repeat a kernel's entries are left out."
    return [
        Figure(
            save(drawing, folder, "categories"), caption, "figures/categories.png", "tables/functions.csv"
        ),
        Table(tables.functions, "Functions as nixnan names them", "tables/functions.csv"),
    ]


def _applied(tables: NanTables) -> list[Block]:
    blocks: list[Block] = []
    if len(tables.applied):
        frame = tables.applied
        told = [name for name in frame if not (frame[name].isna() | (frame[name] == "")).all()]
        caption = "What each experiment changed, and the proof that it did: modules that took it, values altered, first logits moved"
        blocks.append(Table(frame[told], caption, "tables/applied.csv", pills=PILLS, open_rows=40))
    if len(tables.kernels):
        different = tables.kernels[tables.kernels["launches"] != tables.kernels["baseline_launches"]]
        base = tables.kernels[tables.kernels["launches"] == tables.kernels["baseline_launches"]]
        frame = different if len(different) else base
        caption = (
            "Kernels of one prefill and one decode step that differ from the baseline's, by torch's profiler"
            if len(different)
            else "Kernels of the baseline; no other experiment runs different ones"
        )
        blocks.append(Table(frame, caption, "tables/kernels.csv", open_rows=12))
    return blocks
