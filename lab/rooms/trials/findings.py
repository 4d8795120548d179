"""The page, the tables and the lines of a run of trials."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.core.plan import Findings
from lab.core.run import Run
from lab.core.words import first_few, plural
from lab.report.figures import Cell, cell_grid, ranges, save
from lab.report.page import write_page
from lab.report.parts import Card, Figure, Page, Points, Section, Table, title_of
from lab.report.provenance import provenance
from lab.report.tables import terminal_table, write_csv
from lab.rooms.trials.analyze import Gathered, gather
from lab.rooms.trials.config import NOT_RUN, Trial, TrialsConfig
from lab.rooms.trials.decide import (
    ANSWERS,
    BY_ERRORS,
    BY_PLACE,
    BY_TIME,
    LESS,
    MORE,
    NO_EFFECT,
    NO_TRIALS,
    SLOWER,
    UNRELIABLE,
    Comparison,
    Confounds,
    Decision,
    Rate,
    decide,
)
from lab.rooms.trials.rates import MOST_TRIALS, trials_per_cell

PILLS = {
    "pass": "ok",
    "fail": "fail",
    "error": "warn",
    LESS: "ok",
    MORE: "fail",
    **dict.fromkeys((SLOWER, BY_ERRORS, BY_PLACE, BY_TIME, NO_EFFECT), "warn"),
}
P_VALUES = ("p", "p_corrected", "p_by_place")
TESTS = {
    "order": ("Drift of failures with time", "too few trials or failures"),
    "dependence": ("Dependence on earlier trials", "too few trials or failures"),
    "place": ("Hosts or GPUs that fail at different rates", "all trials ran in one place"),
    "temperature": ("Another GPU temperature of failing trials", "not recorded, or it never changed"),
    "clock": ("Another SM clock of failing trials", "not recorded, or it never changed"),
}
MOST_CARDS = 40
COLUMNS = 48  # of the timeline; more blocks are counted together
MOST_OPEN = 12  # undecided cells that are named
MOST_AGAIN = 5  # failing trials whose command to run again is on the page


def report(out: Path, run: Run) -> Findings:
    """Tables, figures and report.html into `out`."""
    gathered = gather(run)
    config = gathered.config
    decision = decide(gathered.trials, gathered.names, config.baseline, stop=config.stop, until=config.until)
    cells = pd.DataFrame([asdict(row) for row in decision.cells]).rename(columns={"left": "not_run"})
    if any(cell.image for cell in config.cells):
        cells = cells.assign(image=_images(config, run))
    frames = {
        "trials": _trials(gathered.trials),
        "cells": cells,
        "comparisons": pd.DataFrame([asdict(row) for row in decision.comparisons]),
    }
    files = [write_csv(frame, out / "tables" / f"{name}.csv") for name, frame in frames.items()]
    shown = cells.rename(columns={"error": "errors"})
    shown = shown if shown["repeats"].any() else shown.drop(columns="repeats")
    lacking = [*gathered.missing, *_lacking(decision, gathered)]
    verdict = sentences(decision, gathered)
    figures = [_intervals(decision, out), _timeline(gathered, out)]
    method = "paired by block, at every look" if config.stop else "Fisher's exact test, two-sided"
    caption = f"Each cell against the baseline: {method}; p corrected by Holm"
    compared = Table(_short(frames["comparisons"]), caption, "tables/comparisons.csv", pills=PILLS)
    trials = Table(frames["trials"], "Every trial", "tables/trials.csv", pills=PILLS)
    sections = [
        Section("Rates", [figures[0], Table(shown, "One row per cell", "tables/cells.csv")]),
        *([Section("Comparisons", [compared])] if decision.comparisons else []),
        Section("Over time", [figures[1], Points(_confound_lines(decision))]),
        Section("Trials", [*_again(gathered, run), trials]),
    ]
    page = Page(
        title=title_of("Trials", run.manifest.id),
        question="How often does it fail, and which change makes it fail less?",
        verdict=verdict,
        status="warn" if lacking or not decision.decided else "ok",
        cards=[_card(rate) for rate in decision.cells[:MOST_CARDS]],
        sections=sections,
        provenance=provenance(run.root, run.manifest),
        room="trials",
        kind=run.manifest.kind.value,
        badge="" if decision.decided else "✕ undecided",
    )
    files += [*(out / figure.png for figure in figures), write_page(page, out / "report.html")]
    terminal = "\n".join([*verdict, "", terminal_table(shown), "", f"report: {files[-1]}"])
    return Findings(verdict, page.status, files, terminal, lacking, answer=answer(decision))


def _images(config: TrialsConfig, run: Run) -> list[str]:
    """Each cell's image by its name and content: a name may be given to another image later."""
    records = [*([run.manifest.image] if run.manifest.image else []), *run.manifest.images]
    content = {record.name: f"{record.name} {record.id or record.ref}" for record in records}
    return [content.get(cell.image or config.image or "", "none") for cell in config.cells]


def answer(decision: Decision) -> dict[str, Any]:
    """Decision as scripts read it: cells, comparisons, decided."""
    keys = ("name", "n", "fail", "error", "rate", "low", "high")
    compared = ("cell", "baseline", "p", "p_corrected", "verdict")
    return {
        "cells": [{key: getattr(cell, key) for key in keys} for cell in decision.cells],
        "comparisons": [
            {key: getattr(comparison, key) for key in compared} for comparison in decision.comparisons
        ],
        "decided": decision.decided,
        "draws": decision.confounds.draws,
        "confounds": decision.confounds.p,
    }


def sentences(decision: Decision, gathered: Gathered) -> list[str]:
    """The verdict: what was asked, first."""
    rates = {cell.name: cell for cell in decision.cells}
    lines = []
    if decision.until:
        lines.append(_until_sentence(decision, gathered))
    lines += [_against(comparison, rates) for comparison in decision.comparisons]
    if not lines:
        lines.append(_rate_sentence(decision.cells[0]))
    lines += _confound_sentences(decision.confounds)
    if same := [cell.name for cell in decision.cells if cell.repeats]:
        lines.append(
            f"All trials of {', '.join(same)} gave the same numbers, whatever their seed: the command may "
            "not use {seed} or LAB_TRIAL_SEED, and intervals are for repeats of that one input."
        )
    lines += [f"{doubt}." for doubt in gathered.doubts]
    errors = sum(cell.error for cell in decision.cells)
    if errors:
        verb = "is" if errors == 1 else "are"
        bad = next(t for t in gathered.trials if t.verdict == "error")
        prefix = "the first, of" if errors > 1 else "of"
        detail = f" ({prefix} {bad.cell}: {bad.reason})" if bad.reason else ""
        lines.append(f"{plural(errors, 'trial')} ended in error and {verb} in no rate{detail}.")
    return lines


def _rate_sentence(rate: Rate) -> str:
    if rate.rate is None:
        return f"{rate.name}: no trial passed or failed, so it has no rate."
    clean = "" if rate.fail else "; no failure seen is not a rate of zero"
    interval = f"[{rate.low:.1%}, {rate.high:.1%}]"
    return f"{rate.name} failed {rate.fail} of {rate.n}: {rate.rate:.1%} {interval}{clean}."


def _until_sentence(decision: Decision, gathered: Gathered) -> str:
    assert gathered.config.until
    until = gathered.config.until
    rate = next(cell for cell in decision.cells if cell.name == gathered.config.baseline)
    words = {
        "fixed": f"Fixed: a rate of {until.fixed:g} explains the trials better than the old {until.was:g}",
        "not fixed": f"Not fixed: the old {until.was:g} explains the trials better than {until.fixed:g}",
        "undecided": f"Undecided between the old rate of {until.was:g} and {until.fixed:g}",
    }[decision.until or "undecided"]
    return f"{words}: {rate.fail} of {rate.n} failed (wrong in at most 5 %)."


def _against(comparison: Comparison, rates: dict[str, Rate]) -> str:
    cell, base = rates[comparison.cell], rates[comparison.baseline]
    p = "" if comparison.p_corrected is None else f", corrected p {comparison.p_corrected:.2g}"
    slower = (
        "" if comparison.slowdown is None else f"; steps take {comparison.slowdown:.2f} times the baseline's"
    )
    when = "after" if (comparison.began_later or 0) > 0.5 else "before"
    within = "" if comparison.p_by_place is None else f" (p {comparison.p_by_place:.2g})"
    texts = {
        NO_TRIALS: "not compared, because one of them has no trial that passed or failed",
        NO_EFFECT: "not compared, because nothing in the command reads what the cell sets",
        LESS: f"fails less{p}; a rate of up to {cell.high:.1%} stays possible{slower}",
        MORE: f"fails more{p}{slower}",
        SLOWER: f"fails less{p}, but is not told apart from mere slowness{slower}: add a cell that slows the "
        "baseline down as much",
        BY_ERRORS: f"fails less{p}, but {plural(cell.error, 'trial')} of it ended in error against "
        f"{base.error} of the baseline's: its failures may have become errors, which are in no rate",
        BY_TIME: f"differs{p}, but its trials began {when} the baseline's: time may be why. Cells must take "
        "turns",
        BY_PLACE: f"differs{p}, but not within a place{within}: host or GPU may be why",
    }
    text = texts.get(comparison.verdict) or _no_evidence(p, base)
    return (
        f"{comparison.cell} {cell.fail}/{cell.n} against {comparison.baseline} {base.fail}/{base.n}: {text}."
    )


def _no_evidence(p: str, base: Rate) -> str:
    """What could have been seen, so that "no evidence" is not read as "no effect"."""
    if not base.fail:
        return f"no evidence{p}; the baseline never failed, so nothing can be seen to fail less"
    needed_trials = trials_per_cell(base.fail / base.n, base.fail / base.n / 2)
    needed = f"about {needed_trials}" if needed_trials else f"more than {MOST_TRIALS}"
    return f"no evidence{p}; to see a halving takes {needed} trials per cell"


def _lacking(decision: Decision, gathered: Gathered) -> list[str]:
    lines = []
    for rate in decision.cells:
        total = rate.n + rate.error
        if not rate.error or rate.error < UNRELIABLE * total:
            continue
        reason = next(t.reason for t in gathered.trials if t.cell == rate.name and t.verdict == "error")
        so = "so its rate is unreliable" if rate.n else "so it has no rate"
        errors = f"{rate.error} of {plural(total, 'trial')} ended in error"
        lines.append(f"{rate.name}: {errors}, {so}; the first: {reason}")
    if not decision.decided:
        open_ones = [rate.cell for rate in decision.comparisons if rate.verdict not in ANSWERS]
        cells = first_few(open_ones, MOST_OPEN) or gathered.config.baseline
        lines.append(f"undecided: cell{'s' if len(open_ones) > 1 else ''} {cells}")
    return lines


def _confound_sentences(confounds: Confounds) -> list[str]:
    """What failures go with, where that is shown."""
    lines = []
    if confounds.shows("order"):
        lines.append(f"Failures drift with time{_p_of(confounds, 'order')}: no cell has one fixed rate.")
    elif confounds.shows("dependence"):
        pattern = "come in clusters" if confounds.clusters else "alternate with passes"
        lines.append(
            f"Failures {pattern}{_p_of(confounds, 'dependence')}: trials depend on those before them, and "
            "intervals and fixed-n tests, which take them as independent, are too sure."
        )
    lines += [
        f"{place.name} fails more often than other places in the same cells: {place.fail} of {place.n} "
        f"against {place.elsewhere_fail} of {place.elsewhere_n} (corrected p {place.p:.2g})."
        for place in confounds.worse_places
    ]
    if confounds.shows("place") and not confounds.worse_places:
        lines.append(f"Hosts or GPUs fail at different rates{_p_of(confounds, 'place')}.")
    lines += [
        f"Failing trials ran at another {name} of the GPU{_p_of(confounds, name)}."
        for name in ("temperature", "clock")
        if confounds.shows(name)
    ]
    return lines


def _p_of(confounds: Confounds, name: str) -> str:
    return f" (p {confounds.p[name]:.2g})"


def _confound_lines(decision: Decision) -> list[str]:
    """Each of the tests, what it rests on, and what was not tested."""
    confounds = decision.confounds
    num_judged = sum(rate.n for rate in decision.cells)
    lines = [
        f"{plural(num_judged, 'trial')} that passed or failed are {plural(confounds.draws, 'draw')}: trials "
        "with one seed are one draw. The tests shuffle draws, those of cells that share seeds together; "
        "p-values are corrected for their number (Holm)."
    ]
    for name, (title, absent) in TESTS.items():
        if name not in confounds.p:
            lines.append(f"{title}: not tested; {absent}.")
        else:
            shown = "shown" if confounds.shows(name) else "not shown"
            lines.append(f"{title}: {shown}{_p_of(confounds, name)}.")
    if not any(comparison.slowdown for comparison in decision.comparisons):
        lines.append("Speed of the cells: not measured; --step-time NAME reads it from the output.")
    return lines


def _short(compared: pd.DataFrame) -> pd.DataFrame:
    """Small p-values as people write them; the CSV keeps every digit."""
    names = [name for name in P_VALUES if name in compared]
    texts = {name: ["" if pd.isna(p) else f"{p:.2g}" for p in compared[name]] for name in names}
    short: pd.DataFrame = compared.assign(**texts)
    return short


def _trials(trials: list[Trial]) -> pd.DataFrame:
    frame = pd.DataFrame([msgspec.to_builtins(trial) for trial in trials])
    integers = dict.fromkeys(("order", "seed", "exit_code", "first_bad_line"), "Int64")
    ordered: pd.DataFrame = frame.astype(integers).sort_values(["order", "cell", "trial"], ignore_index=True)
    return ordered


def _card(rate: Rate) -> Card:
    low, high = 100 * rate.low, 100 * rate.high
    note = f"{rate.fail} of {rate.n}, [{low:.1f}, {high:.1f}] %"
    if rate.rate is None:
        return Card(rate.name, "–", "tables/cells.csv", note=note)
    return Card(rate.name, f"{100 * rate.rate:.1f}", "tables/cells.csv", unit="%", note=note)


def _intervals(decision: Decision, out: Path) -> Figure:
    spans = [
        (100 * c.low, float("nan") if c.rate is None else 100 * c.rate, 100 * c.high) for c in decision.cells
    ]
    draw = partial(
        ranges,
        [cell.name for cell in decision.cells],
        spans,
        axis="failure rate, %",
        reference=spans[0][1],
        roles=["computation"] * len(spans),
    )
    svg = save(draw, out / "figures", "rates")
    return Figure(svg, "Failure rates with 95 % intervals", "figures/rates.png", "tables/cells.csv")


def _timeline(gathered: Gathered, out: Path) -> Figure:
    """Cells down, blocks across to the last that ran; several blocks share a column where there are many."""
    last_block = max((trial.trial for trial in gathered.trials if trial.verdict != NOT_RUN), default=0)
    wide = last_block // COLUMNS + 1
    tally: dict[tuple[str, int], Counter[str]] = {}
    for trial in gathered.trials:
        tally.setdefault((trial.cell, trial.trial // wide), Counter())[trial.verdict] += 1
    columns = [str(index * wide) for index in range(last_block // wide + 1)]

    def cell(down: int, across: int) -> Cell | None:
        count = tally.get((gathered.names[down], across), Counter())
        n = sum(count[verdict] for verdict in ("pass", "fail", "error"))
        if not n:
            return None
        role = "fail" if count["fail"] else "warn" if count["error"] else "ok"
        text = {"fail": "F", "warn": "E", "ok": ""}[role] if wide == 1 else str(count["fail"] or "")
        hover = f"{gathered.names[down]} from {columns[across]}: {dict(count)}"
        return Cell(text, role, max(count["fail"], count["error"]) / n if role != "ok" else 0.3, hover)

    legend = {"failed": "fail", "error": "warn", "passed": "ok"}
    draw = partial(cell_grid, gathered.names, columns, cell, legend=legend)
    svg = save(draw, out / "figures", "timeline")
    per = "block" if wide == 1 else f"{wide} blocks, with the number of failures"
    return Figure(svg, f"Trials in order, one column per {per}", "figures/timeline.png", "tables/trials.csv")


def _again(gathered: Gathered, run: Run) -> list[Points]:
    """How to run a failing trial again."""
    failed = [trial for trial in gathered.trials if trial.verdict == "fail" and trial.step]
    folders = [shlex.quote(str(run.root / "steps" / trial.step)) for trial in failed[:MOST_AGAIN]]
    return [Points([f"Again: lab run trials --again {folder}" for folder in folders])] if folders else []
