"""The sweep's findings as sentences, from its tables, claiming no more than the runs can support.

Step times by setting and what their repeats allow to claim, where the time goes, what is left out, and
whether requested settings took effect. Each function gives a sentence, or None if the tables hold nothing to
say.

A run's step time is measured without the profiler where enough such steps were recorded, else it is the span
of its GPU work per step: shorter than from mark to mark where hosts launch late. Every repeat is a block: a
pass over all settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lab.core.words import first_few, plural
from lab.recordings.views.launches import GLOO_PREFIX
from lab.rooms.sweep.effective import WORDS, verdict_over_sizes
from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.tables import (
    GEMM_SHAPE,
    KEY,
    SETTING,
    SweepTables,
    copies,
    grouped,
    long_name,
    name_of,
    of_complete,
    size_text,
    timed,
)
from lab.rooms.sweep.unprofiled import FEWEST_STEPS
from lab.stats.effects import best_of
from lab.stats.means import mean_interval

UNPROFILED, PROFILED = "without the profiler", "from first to last kernel, as profiled"


@dataclass(frozen=True)
class StepTime:
    """A setting's time per step: the mean over its runs with its 95 % interval, NaN for a single run."""

    knobs: Knobs
    mean_ms: float
    low_ms: float
    high_ms: float

    @property
    def name(self) -> str:
        return long_name(*self.knobs)

    @property
    def interval(self) -> str:
        """` (10.1 to 10.4)`, or nothing for a single run."""
        return "" if math.isnan(self.low_ms) else f" ({self.low_ms:.1f} to {self.high_ms:.1f})"


@dataclass(frozen=True)
class StepTimes:
    """The runs that may be compared, and the settings by their step time, fastest first.

    runs: columns SETTING, repeat and step_ms. source: UNPROFILED or PROFILED.
    """

    runs: pd.DataFrame
    ranked: list[StepTime]
    source: str


def step_times(tables: SweepTables, unprofiled: pd.DataFrame | None = None) -> StepTimes:
    """The step times of a sweep; unprofiled: the rows of `unprofiled_table`."""
    runs, source = profiled_runs(tables), PROFILED
    if unprofiled is not None and (unprofiled["unprofiled_steps"] >= FEWEST_STEPS).any():
        enough = unprofiled[unprofiled["unprofiled_steps"] >= FEWEST_STEPS]
        enough = enough[~enough[KEY].apply(tuple, axis=1).isin(_cannot_win(tables))]
        runs, source = enough.rename(columns={"unprofiled_ms": "step_ms"})[[*KEY, "step_ms"]], UNPROFILED
    runs = _whole_blocks(runs)
    ranked = [
        StepTime(Knobs(*setting), *mean_interval(rows["step_ms"].tolist()))
        for setting, rows in grouped(runs, SETTING)
    ]
    return StepTimes(runs, sorted(ranked, key=lambda setting: setting.mean_ms), source)


def _cannot_win(tables: SweepTables) -> list[tuple[Any, ...]]:
    """The runs that failed, lack a rank or are copies, whatever steps they left."""
    configs = tables.configs
    # Without any trace the profiler was off: then no run lacks one.
    comparable = ("ok", "missing") if tables.timeline.empty else ("ok",)
    rows = pd.concat([configs[~configs["status"].isin(comparable)], copies(configs)])
    return list(rows[KEY].itertuples(index=False, name=None))


def headline(times: StepTimes) -> str:
    """Which setting is fastest, with its interval, and whether its repeats prove it."""
    if not times.ranked:
        return "No configuration was analysed completely: no result."
    best = times.ranked[0]
    best_ms = f"{best.mean_ms:.1f} ms per step{best.interval} {times.source}"
    if len(times.ranked) == 1:
        return f"Only {best.name} was analysed completely: {best_ms}, with nothing to compare it to."
    second = times.ranked[1]
    return f"{best.name} is fastest: {best_ms}; {second.name} takes {second.mean_ms:.1f} ms; {_proof(times)}."


def uneven_steps(timeline: pd.DataFrame, configs: pd.DataFrame) -> str | None:
    """A sentence if the traces hold different numbers of steps, whose times do not compare."""
    steps = sorted(set(of_complete(timeline, configs)["steps"]))
    if len(steps) < 2:
        return None
    counts = " and ".join(map(str, steps))
    return f"The traces hold {counts} profiled steps: total times do not compare, so no configuration wins."


def profiled_runs(tables: SweepTables) -> pd.DataFrame:
    """The complete runs, each once: the median over ranks of the total time, per step."""
    complete = timed(tables.configs).drop(copies(tables.configs).index)
    steps = tables.timeline.groupby(KEY)["steps"].max().clip(lower=1)
    runs = complete.merge(steps.reset_index(), on=KEY)
    runs["step_ms"] = runs["total_time_ms"] / runs["steps"]
    rows: pd.DataFrame = runs[[*KEY, "step_ms"]]
    return rows


def _whole_blocks(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of blocks in which every setting has one; all where none is whole."""
    num_settings = len(runs[SETTING].drop_duplicates())
    is_whole = runs.groupby("repeat")["repeat"].transform("size") == num_settings
    rows: pd.DataFrame = runs[is_whole] if is_whole.any() else runs
    return rows


def _proof(times: StepTimes) -> str:
    """What the blocks prove about the fastest; logs compare shares."""
    blocks = times.runs.pivot_table(index="repeat", columns=SETTING, values="step_ms").dropna()
    if len(blocks) < 2:
        return "with one run each this order may be chance"
    best = best_of(np.log(blocks.to_numpy()))
    lead, needed = (f"{100 * math.expm1(value):.1f} %" for value in (best.lead, best.needed))
    proof = f"a lead of {lead}, {needed} needed over {plural(len(blocks), 'block')}"
    rivals = [long_name(*blocks.columns[index]) for index in best.candidates if index != best.lowest]
    return (
        f"within noise of {first_few(rivals)} ({proof})" if rivals else f"it alone may be the best ({proof})"
    )


ON_CPU = (
    "These runs were on a CPU with gloo, which has no channels and no GPU threads: neither setting can have "
    "had an effect, so no configuration wins; CPU operators stand in for GPU kernels in every figure here."
)
ORIGIN = {
    "replayed": "The numbers are replayed from a recording made elsewhere.",
    "synthetic": "The numbers are synthetic: they test the path and measure no hardware.",
}
NOTABLE = 0.05  # smallest change of a GEMM's median time to report


def exposed_shares(configs: pd.DataFrame) -> pd.Series:
    """Share by setting of the total time in which nothing hides the communication, least first."""
    complete = configs[configs["status"] == "ok"]
    shares = complete["exposed_comm_time_ms"] / complete["total_time_ms"]
    ordered: pd.Series = shares.groupby([complete[key] for key in SETTING]).median().dropna().sort_values()
    return ordered


def exposed_share(configs: pd.DataFrame) -> str | None:
    """How much of the total time is exposed communication."""
    shares = exposed_shares(configs)
    if shares.empty or not shares.max():
        return None
    low, high = (f"{100 * share:.0f} %" for share in (shares.iloc[0], shares.iloc[-1]))
    if low == high:
        return f"Exposed communication takes {low} of the total time in every configuration."
    return (
        f"Exposed communication takes from {low} of the total time ({long_name(*shares.index[0])}) to {high} "
        f"({long_name(*shares.index[-1])})."
    )


def left_out(configs: pd.DataFrame) -> list[str]:
    """The incomplete configurations by reason, and copies of a repeat; no comparison includes them."""
    by_reason: dict[str, list[str]] = {}
    for row in configs[configs["status"] != "ok"].itertuples():
        reason = f" ({row.reason})" if isinstance(row.reason, str) and row.reason else ""
        by_reason.setdefault(f"{row.status}{reason}", []).append(_run_name(row))
    sentences = [f"Left out, {reason}: {first_few(runs)}." for reason, runs in by_reason.items()]
    if names := [_run_name(row) for row in copies(configs).itertuples()]:
        sentences.append(
            f"No repeat of its own: {first_few(names)}, whose total time is that of an earlier repeat to the "
            "last digit."
        )
    return sentences


def on_cpu(timeline: pd.DataFrame) -> bool:
    return len(timeline) > 0 and bool((timeline["device"] == "cpu").all())


def _run_name(row: object) -> str:
    return f"{name_of(row)} (repeat {row.repeat})"  # type: ignore[attr-defined]


def gemm_totals_ms(gemm: pd.DataFrame, configs: pd.DataFrame) -> pd.Series:
    """GEMM time of a rank in each complete setting, median over ranks and repeats, least first."""
    by_rank_us = of_complete(gemm, configs).groupby([*KEY, "rank"])["sum_us"].sum()
    totals: pd.Series = by_rank_us.groupby(SETTING).median().sort_values() / 1000
    return totals


def gemm_change(gemm: pd.DataFrame, configs: pd.DataFrame) -> str | None:
    """How GEMM time differs between complete configurations."""
    totals_ms = gemm_totals_ms(gemm, configs)
    if len(totals_ms) < 2:
        return None
    low, high = totals_ms.index[0], totals_ms.index[-1]
    ratio = totals_ms.iloc[-1] / totals_ms.iloc[0]
    return (
        f"GEMMs take from {totals_ms.iloc[0]:.1f} ms per rank ({long_name(*low)}) to "
        f"{totals_ms.iloc[-1]:.1f} ms ({long_name(*high)}), {ratio:.2f} times as long."
    )


def starved(gemm: pd.DataFrame, configs: pd.DataFrame) -> list[str]:
    """Count for each number the GEMM shapes that its highest value slows against its lowest."""
    sentences = []
    for knob in ("threads", "channel"):
        by_value = [*GEMM_SHAPE, *(name for name in SETTING if name != knob), knob]
        median_us = (
            of_complete(gemm, configs).groupby(by_value, dropna=False)["median_us"].median().unstack(knob)
        )
        if median_us.shape[1] < 2:
            continue
        low, high = median_us.columns[[0, -1]]
        ratio = (median_us[high] / median_us[low]).dropna().groupby(GEMM_SHAPE, dropna=False).median()
        if len(ratio):
            noun = "channels" if knob == "channel" else knob
            sentences.append(f"With {high} instead of {low} {noun}, {_ratio_words(ratio)}.")
    return sentences


def _ratio_words(ratio: pd.Series) -> str:
    """`5 of 13 GEMM shapes take over 5 % longer (at most 15 %)`; `ratio` is new over old time per shape."""
    longer, shorter = int((ratio > 1 + NOTABLE).sum()), int((ratio < 1 - NOTABLE).sum())
    limit, shapes = f"over {100 * NOTABLE:.0f} %", plural(len(ratio), "GEMM shape")
    clauses = [
        f"{count} of {shapes} {'takes' if count == 1 else 'take'} {limit} {direction} "
        f"(at most {percent:.0f} %)"
        for count, direction, percent in (
            (longer, "longer", 100 * (ratio.max() - 1)),
            (shorter, "less", 100 * (1 - ratio.min())),
        )
        if count
    ]
    return " and ".join(clauses) or f"none of {shapes} changes by {limit}"


def knobs_of(effective: pd.DataFrame) -> list[str]:
    """What the sweep may have requested: channels and threads, and of the others those it did request."""
    return ["channels", "threads", *(word for word in WORDS if (effective[f"requested_{word}"] != "").any())]


def unproven(effective: pd.DataFrame, configs: pd.DataFrame) -> list[str]:
    """One sentence per setting whose algorithm or protocol is not proven to have been used everywhere.

    Settings that were not analysed completely are said elsewhere.
    """
    sentences = []
    complete = configs[configs["status"] == "ok"]
    for setting, _ in grouped(complete, SETTING):
        knobs = Knobs(*setting)
        rows = effective[(effective[SETTING] == list(knobs)).all(axis=1)]
        for word in WORDS:
            requested = getattr(knobs, word)
            if requested and (reason := _not_proven(rows, word, requested)):
                sentences.append(f"{long_name(*knobs)}: {word} {requested} is not proven: {reason}")
    return sentences


def _not_proven(rows: pd.DataFrame, word: str, requested: str) -> str | None:
    """Why a request for an algorithm or protocol is not proven by a setting's collectives; None if it is."""
    asked = rows[rows[f"requested_{word}"] == requested]
    if asked.empty:
        return "no collective that it could reach is in the traces"
    if asked["kernel"].str.startswith(GLOO_PREFIX).all():
        return f"gloo has no {word}s to choose"
    ignored = asked[asked[f"{word}_verdict"] == "ignored"]
    if len(ignored):
        return f"{first_few(sorted(set(ignored[f'effective_{word}'])))} was used at {_sizes(ignored)}"
    unknown = asked[asked[f"{word}_verdict"] == "unknown"]
    return f"neither the log nor the kernels' blocks tell it at {_sizes(unknown)}" if len(unknown) else None


def _sizes(rows: pd.DataFrame) -> str:
    return first_few([size_text(size) for size in sorted(rows["msg_bytes"].unique())])


def honoured(effective: pd.DataFrame, knob: str) -> list[str]:
    """Requested against effective values of `knob` (channels, ...), one sentence per outcome over sizes."""
    asked = effective[f"requested_{knob}"]
    requested = effective[asked != "" if knob in WORDS else asked > 0]
    values_by_outcome: dict[str, list[object]] = {}
    for value, rows in requested.groupby(f"requested_{knob}"):
        outcome = verdict_over_sizes(zip(rows["msg_bytes"], rows[f"{knob}_verdict"], strict=True))
        unknown = rows[rows[f"{knob}_verdict"] == "unknown"]
        if 0 < len(unknown) < len(rows):
            outcome += f", unknown at {_sizes(unknown)}"
        values_by_outcome.setdefault(outcome, []).append(value)
    sentences = []
    for outcome, values in values_by_outcome.items():
        rows = requested[requested[f"requested_{knob}"].isin(values)]
        sentences.append(f"{knob.capitalize()} {', '.join(map(str, values))}: {outcome}{_used(rows, knob)}.")
    return sentences


def _used(rows: pd.DataFrame, knob: str) -> str:
    """` (70 -> 64)`: what was used where a request was not honoured."""
    rows = rows[rows[f"{knob}_verdict"].isin(["clamped", "ignored"])]
    used = rows[f"effective_{knob}"]
    if knob == "channels":  # without a grid the log has told
        used = used.where(used > 0, rows["log_channels"])
    pairs = sorted(set(zip(rows[f"requested_{knob}"], used, strict=True)))
    return f" ({first_few([f'{before} -> {after}' for before, after in pairs])})" if pairs else ""
