"""What changed per configuration, whether it can be chance, the environment of each sweep, and the sentences.

A claim of significance needs repeats of the run: ranks of one run share its luck.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.core.manifest import Manifest
from lab.core.run import Run
from lab.core.words import first_few, plural
from lab.rooms.sweep.gemm.data import SweepData, read_sweep
from lab.rooms.sweep.journal import expected_runs
from lab.rooms.sweep.ranks.verdict import bound_by_hosts
from lab.rooms.sweep.tables import SETTING, SweepTables, column_names, grouped, name_of
from lab.rooms.sweep.verdict import left_out, profiled_runs
from lab.stats.effects import holm, permutation_p
from lab.stats.means import Sample, difference_ci
from lab.stats.robust import median

SIGNIFICANT = 0.05
NOT_RECORDED = "not recorded"
GPU_FACTS = {"driver": "driver", "highest SM clock, MHz": "max_sm_mhz", "power limit, W": "power_limit_w"}
UNEVEN, TOO_FEW, NOT_IN_BOTH = "other numbers of steps", "too few repeats", "not in both"
NO_DIFFERENCE, PROVEN = "no difference shown", ("faster", "slower")
CONFIG_FIGURES = [
    *column_names("base other"),
    *SETTING,
    *column_names(
        "repeats_base repeats_other step_base_ms step_other_ms change_percent repeats_low_percent "
        "repeats_high_percent p_value"
    ),
]


def config_changes(base: Sweep, heads: Sequence[Sweep]) -> pd.DataFrame:
    """One row per configuration of the base or another sweep: medians, change, and over repeats an interval
    and p, which is corrected over all sweeps and configurations (Holm)."""
    frame: pd.DataFrame = pd.concat([_changes(base, head) for head in heads], ignore_index=True)
    p = frame["p_value"].mask(frame["other"].isin([head.label for head in heads if steps_differ(base, head)]))
    frame["p_value"] = p  # of other numbers of steps no test says anything
    frame["p_holm"] = holm(p.to_numpy(dtype=float))
    pairs = zip(frame["repeats_base"], frame["repeats_other"], strict=True)
    least_p_holm = np.minimum(1.0, int(p.notna().sum()) * np.array([least_p(*pair) for pair in pairs]))
    frame["least_p_holm"] = np.where(p.notna(), least_p_holm, np.nan)  # untested: nothing to reach
    frame["judgement"] = [_judge(row) for row in frame.itertuples()]
    return frame


def steps_differ(base: Sweep, head: Sweep) -> bool:
    """Whether the two profiled different numbers of steps, so that no time compares."""
    return len({*base.tables.timeline["steps"], *head.tables.timeline["steps"]}) > 1


def shared_repeats(base: Sweep, head: Sweep) -> int:
    """Repeats of `head` whose time is that of a repeat of `base`, to the last digit: copies of it."""
    key = [*SETTING, "step_ms"]
    sides = [profiled_runs(sweep.tables)[key] for sweep in (head, base)]
    return len(sides[0].merge(sides[1].drop_duplicates(), on=key))


def _changes(base: Sweep, head: Sweep) -> pd.DataFrame:
    sides = [
        {
            setting: runs["step_ms"].to_numpy()
            for setting, runs in grouped(profiled_runs(side.tables), SETTING)
        }
        for side in (base, head)
    ]
    rows = []
    for setting in sorted({*sides[0], *sides[1]}):
        base_ms, head_ms = (side.get(setting, np.empty(0)) for side in sides)
        rows.append(
            {
                "base": base.label,
                "other": head.label,
                **dict(zip(SETTING, setting, strict=True)),
                "repeats_base": len(base_ms),
                "repeats_other": len(head_ms),
                "step_base_ms": median(base_ms),
                "step_other_ms": median(head_ms),
                "change_percent": 100 * (median(head_ms) / median(base_ms) - 1),
                **_over_repeats(base_ms, head_ms),
            }
        )
    frame: pd.DataFrame = pd.DataFrame(rows, columns=CONFIG_FIGURES)
    return frame


def _over_repeats(base_ms: np.ndarray, head_ms: np.ndarray) -> dict[str, float]:
    """The change's 95 % interval, by Welch on the logs, and the p of a permutation test."""
    low, high, p_value = math.nan, math.nan, math.nan
    if min(len(base_ms), len(head_ms)) > 1:
        # On logs, because a change is a share of the time.
        samples = (Sample.of(np.log(side).tolist()) for side in (head_ms, base_ms))
        low, high = (100 * math.expm1(edge) for edge in difference_ci(*samples))
        treated = np.repeat([False, True], [len(base_ms), len(head_ms)])
        p_value = permutation_p(
            np.concatenate([base_ms, head_ms]), treated, np.zeros(len(treated), dtype=int)
        )
    return {"repeats_low_percent": low, "repeats_high_percent": high, "p_value": p_value}


def least_p(repeats_base: int, repeats_other: int) -> float:
    """The least two-sided p of a permutation test of so many repeats: 1 over their arrangements, 2 where
    equal numbers give each its mirror image."""
    if min(repeats_base, repeats_other) < 1:
        return 1.0
    mirrored = 2 if repeats_base == repeats_other else 1
    return min(1.0, mirrored / math.comb(repeats_base + repeats_other, repeats_base))


def repeats_needed(comparisons: int) -> int:
    """How many repeats of each let the clearest of so many differences reach significance after Holm."""
    return next(n for n in range(2, 50) if comparisons * least_p(n, n) <= SIGNIFICANT)


def _judge(row: Any) -> str:
    fewest = min(row.repeats_base, row.repeats_other)
    if fewest == 0:
        return NOT_IN_BOTH
    if math.isnan(row.p_value) and fewest > 1:
        return UNEVEN
    if fewest == 1 or row.least_p_holm > SIGNIFICANT:
        return TOO_FEW  # not even the clearest difference could reach significance
    if row.p_holm >= SIGNIFICANT:
        return NO_DIFFERENCE
    return "slower" if row.change_percent > 0 else "faster"


@dataclass(frozen=True)
class Sweep:
    """One sweep as it is compared: its tables, and the environment it was recorded in."""

    label: str
    folder: Path
    tables: SweepTables
    environment: dict[str, str]
    host_bound: str = ""  # where the hosts, not the GPUs, set the pace of its steps
    data: SweepData | None = None


def read_for_comparison(
    folder: Path,
    label: str,
    workers: int,
    progress: Callable[[int, int, Path], None] | None = None,
) -> Sweep:
    """What one sweep says, and its environment; each trace is read once."""
    run = Run.open(folder) if Run.is_run(folder) else None
    data = read_sweep(folder, workers=workers, planned=expected_runs(run), progress=progress)
    environment = _from_traces(data)
    environment |= _from_manifest(run.manifest) if run else {"manifest": "none: not recorded by lab"}
    return Sweep(label, folder, data.tables, environment, bound_by_hosts(data.explained) or "", data)


def environments(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """What is known of each sweep's environment, one row per fact; what differs comes first."""
    facts = list(dict.fromkeys(name for sweep in sweeps for name in sweep.environment))
    columns = {sweep.label: [sweep.environment.get(fact, NOT_RECORDED) for fact in facts] for sweep in sweeps}
    states = [
        "same" if len(set(values)) == 1 else "differs" for values in zip(*columns.values(), strict=True)
    ]
    frame = pd.DataFrame({"what": facts, **columns, "state": states})
    ordered: pd.DataFrame = frame.sort_values("state", kind="stable", ignore_index=True)
    return ordered


def _from_traces(data: SweepData) -> dict[str, str]:
    """What the traces say of the job's size, its GPUs and its libraries."""
    values: dict[str, set[str]] = {}
    for ranks in data.ranks.values():
        for rank in ranks.values():
            for name, value in {**rank.figures.about, "ranks": str(rank.figures.world_size or "")}.items():
                values.setdefault(f"{name} (trace)", set()).add(value)
    values["profiled steps (trace)"] = {str(steps) for steps in data.tables.timeline["steps"]}
    return {name: ", ".join(sorted(filter(None, texts))) or NOT_RECORDED for name, texts in values.items()}


def _from_manifest(manifest: Manifest) -> dict[str, str]:
    gpus = {
        name: sorted({str(getattr(gpu, field) or "unknown") for gpu in manifest.gpus})
        for name, field in GPU_FACTS.items()
    }
    parts: dict[str, Mapping[str, Any]] = {
        "host": manifest.host,
        "version": manifest.versions,
        "env": manifest.env,
        "config": manifest.config,
    }
    return {
        "manifest": "present",
        "engine": manifest.engine,
        "image": manifest.image.ref if manifest.image else "none",
        "lab": f"{manifest.lab.version} {manifest.lab.commit or ''}".strip(),
        **{name: ", ".join(values) or "none" for name, values in gpus.items()},
        **{f"{part} {name}": str(value) for part, facts in parts.items() for name, value in facts.items()},
    }


UNPROVEN = {
    UNEVEN: "they hold different numbers of steps, and do not compare",
    TOO_FEW: "with so few repeats this may be chance, and nothing can be claimed",
    NO_DIFFERENCE: "this is within the spread of the repeats",
}


def compared_in_words(
    configs: pd.DataFrame, environment: pd.DataFrame, base: Sweep, heads: Sequence[Sweep]
) -> list[str]:
    """Per sweep what changed against the base, then what else differs."""
    sentences = [f"{sweep.label}: {sweep.host_bound}" for sweep in (base, *heads) if sweep.host_bound]
    for head in heads:
        pair = f"{base.label} and {head.label}"
        rows = configs[(configs["other"] == head.label) & configs["change_percent"].notna()]
        sentences.append(
            f"{head.label} against {base.label}: {_changes_text(rows)}."
            if len(rows)
            else f"{pair} have no complete configuration in common."
        )
    differs = list(environment.loc[environment["state"] == "differs", "what"])
    facts = (
        f"differs in {first_few(differs, limit=6)}" if differs else "is the same as far as it was recorded"
    )
    sentences.append(f"Their environment {facts}.")
    if bare := [sweep.label for sweep in (base, *heads) if "host name" not in sweep.environment]:
        sentences.append(
            f"{first_few(bare)}: not recorded by lab: host, driver, clocks, image and settings are unknown."
        )
    return sentences


def not_compared(base: Sweep, heads: Sequence[Sweep], configs: pd.DataFrame) -> list[str]:
    """What keeps the comparison from being whole, one sentence each."""
    sentences = [
        f"{sweep.label}: {text}" for sweep in (base, *heads) for text in left_out(sweep.tables.configs)
    ]
    for head in heads:
        pair = f"{base.label} and {head.label}"
        if steps_differ(base, head):
            sentences.append(f"{pair} profiled different numbers of steps: times do not compare")
        if shared := shared_repeats(base, head):
            sentences.append(
                f"{pair}: {plural(shared, 'total time')} equal to the last digit: copies of one recording, "
                "which count once"
            )
        lone = configs[(configs["other"] == head.label) & (configs["judgement"] == NOT_IN_BOTH)]
        if len(lone):
            names = first_few([name_of(row) for row in lone.itertuples()])
            sentences.append(f"{pair}: {plural(len(lone), 'configuration')} not complete in both: {names}")
    return sentences


def _changes_text(rows: pd.DataFrame) -> str:
    """The proven changes, then the range of the others, why they are unproven, and what would show more."""
    proven = rows[rows["judgement"].isin(PROVEN)]
    clauses = [
        f"{name_of(row)} {row.judgement} by {abs(row.change_percent):.1f} %" for row in proven.itertuples()
    ]
    unproven = rows.drop(proven.index)
    for judgement, judged in unproven.groupby("judgement"):
        low, high = judged["change_percent"].min(), judged["change_percent"].max()
        change = f"{low:+.1f} %" if low == high else f"{low:+.1f} to {high:+.1f} %"
        clause = (
            f"a step changes by {change} in {plural(len(judged), 'configuration')}: {UNPROVEN[judgement]}"
        )
        if judgement == NO_DIFFERENCE:
            edges = judged["repeats_low_percent"].min(), judged["repeats_high_percent"].max()
            clause += f", which leave {edges[0]:+.1f} to {edges[1]:+.1f} % possible"
        if judgement == TOO_FEW:
            clause += f" ({_advice(rows)})"
        clauses.append(clause)
    return "; ".join(clauses)


def _advice(rows: pd.DataFrame) -> str:
    """What these repeats could have shown, and how many could show more."""
    tested = int(rows["p_value"].notna().sum())
    single = f"{repeats_needed(1)} fresh runs of one pair of settings each, named beforehand, could show one"
    if not tested:
        return single
    return (
        f"over {plural(tested, 'comparison')} their least p is {rows['least_p_holm'].min():.2f} after Holm, "
        f"{SIGNIFICANT:g} would take {repeats_needed(tested)} repeats of each; {single}"
    )
