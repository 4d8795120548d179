"""What ran beside a GEMM, and what slows it: the same shape with and without a collective beside it.

Collectives that wait for a rank and those that move data occupy the GPU's multiprocessors alike: one that
only waits for a straggler slows a GEMM too.

Causes are told one configuration at a time, with the instances of all its ranks, steps and repeats. If one
rank never overlaps and the others always do, the effect of the collective cannot be told from that of the
rank: the test then takes whole ranks as its units, and says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lab.core.words import plural, ranks_text
from lab.errors import MissingError
from lab.report.figures import ranges, save_png
from lab.report.tables import write_csv
from lab.rooms.sweep.gemm import Report
from lab.rooms.sweep.gemm.data import SweepData
from lab.rooms.sweep.knobs import Key
from lab.rooms.sweep.tables import (
    FREE,
    FULL,
    GROUP,
    KEY,
    NO_LAUNCH,
    PARTIAL,
    SETTING,
    column_names,
    grouped,
    long_name,
    name_of,
)
from lab.stats.effects import median_ratio_ci, permutation_p
from lab.stats.intervals import meetings, spans, total
from lab.stats.intervals import overlap as covered
from lab.stats.robust import median

EFFECT = [
    *SETTING,
    *GROUP,
    *column_names(
        "family n free_n overlapped_n partial_n full_n free_median_us partial_median_us full_median_us "
        "overlapped_median_us slowdown ci_low ci_high p_value test same_rank_slowdown same_rank_n "
        "excess_time_us note"
    ),
]
FEW = 5  # instances
MOST_ROWS = 40  # of the plot
BY_BLOCK, BY_RANK, NO_TEST = "within rank and step", "whole ranks", "none possible"
OVERLAP = column_names(
    "overlapping_collective_count overlapping_collective_names max_overlap_percentage "
    "max_overlap_collective total_overlap_duration_ms"
)
# Of the longest instance: what share of its window a waiting and a transferring collective covers, and the
# collective_id of collectives.csv. Of the shortest: the share any collective covers, as the control.
CONTROL = [
    "waiting_percentage",
    "transfer_percentage",
    "max_overlap_collective_id",
    "min_instance_overlap_percentage",
]


def write_causes(data: SweepData, out: Path) -> Report:
    """Write gemm_overlap_effect.csv and the plot of the slowdowns.

    A GEMM that ran only with or only without a collective beside it has its row, with NaN and a note.
    """
    effects = effect_table(data)
    files = [write_csv(effects, out / "gemm_overlap_effect.csv")]
    if figure := slowdown_plot(effects):
        files.append(save_png(figure, out / "plots" / "gemm_overlap_slowdown.png"))
    return Report(files, list(data.missing), list(data.problems), findings(effects))


def slowdown_plot(effects: pd.DataFrame) -> Figure | None:
    """The slowdown of each GEMM beside a collective, largest first; None if nothing was compared."""
    compared = effects.dropna(subset=["slowdown"])
    if compared.empty:
        return None
    shown = compared.sort_values("slowdown", ascending=False).head(MOST_ROWS)
    labels = [f"{name_of(row)}  {row.op} {row.M}×{row.N}×{row.K}" for row in shown.itertuples()]
    spans = list(shown[["ci_low", "slowdown", "ci_high"]].itertuples(index=False, name=None))
    # An interval that holds 1 does not show a slowdown.
    roles = ["communication" if low > 1 else "unknown" for low, _, _ in spans]
    axis = "time under a concurrent collective ÷ time without (95 % interval)"
    return ranges(labels, spans, axis=axis, reference=1.0, roles=roles)


def effect_table(data: SweepData) -> pd.DataFrame:
    """The table EFFECT, by configuration, most GEMM time first."""
    key = [*SETTING, *GROUP]
    rows = [
        {**dict(zip(key, values, strict=True)), **effect(instances), "order": -instances["dur_ns"].sum()}
        for values, instances in usable(data).groupby(key, observed=True, sort=True)
    ]
    ordered = pd.DataFrame(rows).sort_values([*SETTING, "order"], ignore_index=True)
    table: pd.DataFrame = ordered[EFFECT]
    return table


def findings(effects: pd.DataFrame) -> list[str]:
    """Per configuration: how much longer GEMMs take beside a collective."""
    sentences = []
    for setting, rows in grouped(effects, SETTING):
        compared = rows.dropna(subset=["slowdown"])
        words = "no GEMM ran both with and without a collective beside it"
        sentences.append(f"{long_name(*setting)}: {words if compared.empty else _slowdown_words(compared)}")
    return sentences


def _slowdown_words(compared: pd.DataFrame) -> str:
    slowdown = compared["slowdown"]
    added_ms = compared["excess_time_us"].sum() / 1000
    clear = int((compared["ci_low"] > 1).sum())
    blurred = int((compared["test"] == BY_RANK).sum())
    doubt = f"; for {blurred} of them the rank and the overlap cannot be told apart" if blurred else ""
    return (
        f"beside a collective a GEMM takes {slowdown.median():.2f} times as long (median of "
        f"{plural(len(compared), 'shape')}, {slowdown.min():.2f} to {slowdown.max():.2f}, {clear} clearly "
        f"longer{doubt}), which adds {added_ms:.1f} ms over all ranks and steps"
    )


def effect(rows: pd.DataFrame) -> dict[str, Any]:
    """What a concurrent collective does to one GEMM of one configuration; `rows` are its instances."""
    dur_us = rows["dur_ns"].to_numpy() / 1000
    kind = rows["overlap"].astype(str).to_numpy()
    figures = slowdown(rows)
    figures["p_value"], test = _p_value(rows, dur_us, figures["p_value"])
    same_rank = _same_rank(rows, dur_us)
    beside_us = dur_us[kind != FREE]
    return {
        "family": rows["family"].iloc[0],
        "n": len(rows),
        "partial_n": int((kind == PARTIAL).sum()),
        "full_n": int((kind == FULL).sum()),
        "partial_median_us": median(dur_us[kind == PARTIAL]),
        "full_median_us": median(dur_us[kind == FULL]),
        **figures,
        "test": test,
        "same_rank_slowdown": median(same_rank),
        "same_rank_n": len(same_rank),
        "excess_time_us": float((beside_us - figures["free_median_us"]).sum())
        if figures["free_n"]
        else np.nan,
        "note": _note(rows, figures, test),
    }


def _p_value(rows: pd.DataFrame, dur_us: np.ndarray, blocked: float) -> tuple[float, str]:
    """Within ranks and steps if both kinds ran there, otherwise over whole ranks."""
    if not np.isnan(blocked):
        return blocked, BY_BLOCK
    # A GEMM of 0 ns has no logarithm.
    columns = {"dur": np.log(np.maximum(dur_us, 1e-3)), "beside": (rows["overlap"] != FREE).to_numpy()}
    unit = rows.groupby(["repeat", "rank"], sort=False).ngroup().to_numpy()
    by_rank = pd.DataFrame(columns).groupby(unit).agg({"dur": "median", "beside": "mean"})
    units = len(by_rank)
    p_value = permutation_p(
        by_rank["dur"].to_numpy(), by_rank["beside"].to_numpy() > 0.5, np.zeros(units, dtype=int)
    )
    return p_value, NO_TEST if np.isnan(p_value) else BY_RANK


def _same_rank(rows: pd.DataFrame, dur_us: np.ndarray) -> list[float]:
    """Slowdown within each rank (of each repeat) that ran both kinds."""
    units = [rows["repeat"].to_numpy(), rows["rank"].to_numpy(), (rows["overlap"] == FREE).to_numpy()]
    medians_us = pd.Series(dur_us).groupby(units).median().unstack().reindex(columns=[False, True]).dropna()
    slowdowns: list[float] = (medians_us[False] / medians_us[True].replace(0, np.nan)).tolist()
    return slowdowns


def _note(rows: pd.DataFrame, figures: dict[str, Any], test: str) -> str:
    if not figures["free_n"]:
        return "never ran without a collective beside it: no control"
    if not figures["overlapped_n"]:
        return "no collective ever ran beside it"
    counts = {kind: figures[f"{kind}_n"] for kind in ("free", "overlapped")}
    notes = [f"only {plural(count, f'{kind} instance')}" for kind, count in counts.items() if count < FEW]
    if test == BY_RANK:
        free = sorted(set(rows.loc[rows["overlap"] == FREE, "rank"].tolist()))
        ranks = ranks_text(free, limit=len(free))
        notes.append(f"free only on {ranks}, so the rank and the overlap cannot be told apart")
    return "; ".join(notes)


def usable(data: SweepData) -> pd.DataFrame:
    """The GEMM instances that have an op. Raises MissingError if there is none."""
    rows: pd.DataFrame = data.gemm[data.gemm["op"] != NO_LAUNCH]
    if rows.empty:
        raise MissingError(
            "no GEMM in these traces was launched by a recorded op",
            location=data.folder,
            fix="record the traces with record_shapes=True, and the CPU side too",
        )
    return rows


def slowdown(instances: pd.DataFrame) -> dict[str, float]:
    """Compare one GEMM without and with a collective beside it: medians, ratio, 95 % interval and p-value.

    instances: one group, with rank, step, dur_ns and comm_ns. The p-value shuffles labels within a rank and
    step only; NaN where no rank and step has both kinds.
    """
    dur_us = instances["dur_ns"].to_numpy() / 1000
    beside = instances["comm_ns"].to_numpy() > 0
    free_us, overlapped_us = dur_us[~beside], dur_us[beside]
    low, high, p_value = np.nan, np.nan, np.nan
    if len(free_us) and len(overlapped_us):
        low, high = median_ratio_ci(free_us, overlapped_us)
        # Chance may not mix configurations, ranks and steps.
        unit = [name for name in (*KEY, "rank", "step") if name in instances]
        blocks = instances.groupby(unit, sort=False, observed=True).ngroup().to_numpy()
        p_value = permutation_p(np.log(np.maximum(dur_us, 1e-3)), beside, blocks)
    return {
        "free_n": len(free_us),
        "overlapped_n": len(overlapped_us),
        "free_median_us": median(free_us),
        "overlapped_median_us": median(overlapped_us),
        "slowdown": median(overlapped_us) / (median(free_us) or np.nan),  # NaN beside GEMMs of no time
        "ci_low": low,
        "ci_high": high,
        "p_value": p_value,
    }


class RankCollectives(NamedTuple):
    """A rank's collectives by time on its own clock, which is that of its GEMMs.

    span (n, 2) is when each ran, waiting (n, 2) the part of it before its last rank arrived.
    """

    span: np.ndarray
    waiting: np.ndarray
    names: np.ndarray
    ids: np.ndarray


def rank_collectives(data: SweepData, setting: Key, rank: int) -> RankCollectives:
    pairs = data.pairs[setting]
    matched = pairs.instances.where(pairs.instances.rank == rank)
    matched = matched.take(np.argsort(matched.ts_ns, kind="stable"))
    # Matched collectives are on the common clock.
    start = matched.ts_ns + pairs.offsets_ns.get(rank, 0)
    # A call that one rank alone recorded has no known wait: all of it counts as transfer.
    wait_ns = np.nan_to_num(matched.wait_us * 1000).astype(np.int64)
    return RankCollectives(
        spans(start, matched.dur_ns),
        spans(start, np.minimum(wait_ns, matched.dur_ns)),
        np.where(matched.collective != "", matched.collective, matched.kernel),
        matched.collective_id,
    )


def with_overlap(data: SweepData, top: pd.DataFrame) -> pd.DataFrame:
    """The rows with OVERLAP and CONTROL appended."""
    rows = [_of_row(data, row) for row in top.to_dict("records")]
    result: pd.DataFrame = pd.concat([top, pd.DataFrame(rows, columns=[*OVERLAP, *CONTROL])], axis=1)
    return result


def _of_row(data: SweepData, row: dict[Any, Any]) -> dict[str, Any]:
    setting = Key(*(row[name] for name in KEY))
    collectives = rank_collectives(data, setting, int(row["rank"]))
    window, control = (
        np.array([[row[f"{extreme}_ts_ns"], row[f"{extreme}_end_ns"]]], dtype=np.int64)
        for extreme in ("max", "min")
    )
    _, met = meetings(window, collectives.span)
    clipped = np.clip(collectives.span[met], *window[0])
    shares = 100 * (clipped[:, 1] - clipped[:, 0]) / max(int(window[0, 1] - window[0, 0]), 1)
    longest = met[shares.argmax()] if len(met) else -1
    names, ids = collectives.names, collectives.ids
    waiting_ns = int(covered(window, collectives.waiting)[0])
    all_ns = total(clipped)
    return {
        "overlapping_collective_count": len(met),
        "overlapping_collective_names": ";".join(names[met].tolist()),
        "max_overlap_percentage": float(shares.max()) if len(met) else 0.0,
        "max_overlap_collective": names[longest] if len(met) else "",
        "total_overlap_duration_ms": all_ns / 1e6,
        "waiting_percentage": _percent(waiting_ns, window),
        "transfer_percentage": _percent(all_ns - waiting_ns, window),
        "max_overlap_collective_id": int(ids[longest]) if len(met) else -1,
        "min_instance_overlap_percentage": _percent(int(covered(control, collectives.span)[0]), control),
    }


def _percent(part_ns: int, window: np.ndarray) -> float:
    return 100 * part_ns / max(int(window[0, 1] - window[0, 0]), 1)


def overlap_findings(table: pd.DataFrame) -> list[str]:
    if table.empty:
        return []
    slow = int((table["total_overlap_duration_ms"] > 0).sum())
    fast = int((table["min_instance_overlap_percentage"] > 0).sum())
    return [
        f"of the {plural(len(table), 'most varying GEMM')}, a collective overlapped the longest instance of "
        f"{slow} and the shortest instance of {fast}"
    ]
