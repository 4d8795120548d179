"""The sweep's findings in words, computed from its tables and claiming no more than the runs can carry.

Every function takes tables of `lab.rooms.sweep.analyze.SweepTables` and gives a sentence, or None where the
tables hold nothing to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

SETTING = ["threads", "channel"]
GEMM_SHAPE = ["op", "B", "M", "N", "K", "bias", "dtype", "transpose"]


@dataclass(frozen=True)
class Contender:
    """A configuration with a complete repeat; `totals_ms` per complete repeat, median over its ranks."""

    threads: int
    channel: int
    totals_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return float(np.median(self.totals_ms))

    @property
    def name(self) -> str:
        return long_name(self.threads, self.channel)


def long_name(threads: int, channel: int) -> str:
    """`256 threads, 28 channels`; a setting of 0 was not known."""
    known = [f"{value} {word}" for value, word in ((threads, "threads"), (channel, "channels")) if value]
    return ", ".join(known) or "unnamed configuration"


def short_name(threads: int, channel: int) -> str:
    """`256t 28ch`, for axes and table cells."""
    return " ".join(f"{value}{word}" for value, word in ((threads, "t"), (channel, "ch")) if value) or "unnamed"


def contenders(configs: pd.DataFrame) -> list[Contender]:
    """Complete configurations, least median total time first. Failed, missing and incomplete ones never enter."""
    complete = configs[(configs["status"] == "ok") & configs["total_time_ms"].notna()]
    groups = complete.groupby(SETTING, sort=True)["total_time_ms"]
    found = [Contender(int(key[0]), int(key[1]), tuple(map(float, totals))) for key, totals in groups]
    return sorted(found, key=lambda one: one.median_ms)


def on_cpu(timeline: pd.DataFrame) -> bool:
    return len(timeline) > 0 and bool((timeline["device"] == "cpu").all())


def separated(ranked: list[Contender]) -> bool:
    """Whether every repeat of the first is faster than every repeat of the second."""
    return len(ranked) > 1 and max(ranked[0].totals_ms) < min(ranked[1].totals_ms)


def headline(ranked: list[Contender]) -> str:
    """Which configuration has the least total time and by how much."""
    if not ranked:
        return "No configuration was analysed completely, so there is no result."
    best = ranked[0]
    if len(ranked) == 1:
        return (
            f"Only {best.name} was analysed completely: total time {best.median_ms:.1f} ms (median over ranks), "
            "nothing to compare it with."
        )
    second = ranked[1]
    if best.totals_ms[1:] and second.totals_ms[1:] and not separated(ranked):
        return (
            f"{best.name} and {second.name} are indistinguishable: {best.median_ms:.1f} ms and "
            f"{second.median_ms:.1f} ms total time lie inside the spread of their repeats."
        )
    gap_percent = 100 * (second.median_ms / best.median_ms - 1)
    return (
        f"{best.name} has the least total time: {best.median_ms:.1f} ms (median over ranks); the next, "
        f"{second.name}, takes {gap_percent:.1f} % longer ({second.median_ms:.1f} ms)."
    )


def certainty(ranked: list[Contender]) -> str | None:
    """What the repeats allow to claim about the first two."""
    if len(ranked) < 2:
        return None
    runs = [len(one.totals_ms) for one in ranked[:2]]
    if min(runs) == 1:
        whom = "These are one run each" if max(runs) == 1 else "One of the first two has only one complete run"
        return f"{whom}: the order may be chance and no claim of significance can be made; repeats would allow one."
    spans = [f"{min(one.totals_ms):.1f} to {max(one.totals_ms):.1f} ms" for one in ranked[:2]]
    counted = f"{runs[0]} repeats of the first span {spans[0]}, {runs[1]} of the second {spans[1]}"
    if not separated(ranked):
        return f"The repeats overlap: {counted}."
    odds = math.comb(sum(runs), runs[0])
    return (
        f"The repeats do not overlap: {counted}. Two equal configurations would fall so by chance once in {odds} "
        "sweeps, before counting that the best of several was picked."
    )


def exposed_share(configs: pd.DataFrame) -> str | None:
    """How much of the total time is communication that nothing hides."""
    complete = configs[configs["status"] == "ok"]
    share = (complete["exposed_comm_time_ms"] / complete["total_time_ms"]).groupby([complete[key] for key in SETTING])
    shares = share.median().dropna().sort_values()
    if shares.empty or not shares.max():
        return None
    low, high = shares.index[0], shares.index[-1]
    if len(shares) == 1:
        return f"Exposed communication takes {100 * shares.iloc[0]:.0f} % of the total time."
    return (
        f"Exposed communication takes from {100 * shares.iloc[0]:.0f} % of the total time ({long_name(*low)}) "
        f"to {100 * shares.iloc[-1]:.0f} % ({long_name(*high)})."
    )


def obeyed(effective: pd.DataFrame, knob: str) -> list[str]:
    """Requested against effective for `knob` (`channels` or `threads`), a sentence per pattern over sizes."""
    patterns: dict[tuple[tuple[str, tuple[float, ...]], ...], list[pd.DataFrame]] = {}
    asked_for = effective[effective[f"requested_{knob}"] > 0]
    for _, rows in asked_for.groupby(f"requested_{knob}"):
        sizes = rows.groupby(f"{knob}_verdict")["msg_bytes"].unique()
        pattern = tuple((str(verdict), tuple(sorted(sizes[verdict]))) for verdict in _ordered(sizes.index))
        patterns.setdefault(pattern, []).append(rows)
    return [_pattern_sentence(knob, pattern, pd.concat(rows)) for pattern, rows in patterns.items()]


def gemm_change(gemm: pd.DataFrame, configs: pd.DataFrame) -> str | None:
    """How GEMM time differs between complete configurations, and which shape loses most."""
    complete = configs.loc[configs["status"] == "ok", [*SETTING, "repeat"]].drop_duplicates()
    rows = gemm.merge(complete, on=[*SETTING, "repeat"])
    per_rank_ms = rows.groupby([*SETTING, "repeat", "rank"])["sum_us"].sum() / 1000
    totals_ms = per_rank_ms.groupby(SETTING).median().sort_values()
    if len(totals_ms) < 2:
        return None
    low, high = totals_ms.index[0], totals_ms.index[-1]
    sentence = (
        f"GEMMs take from {totals_ms.iloc[0]:.1f} ms per rank ({long_name(*low)}) to {totals_ms.iloc[-1]:.1f} ms "
        f"({long_name(*high)}), {totals_ms.iloc[-1] / totals_ms.iloc[0]:.2f} times as long"
    )
    return sentence + _worst_shape(rows) + "."


def straggler(timeline: pd.DataFrame) -> list[str]:
    """Ranks that spend less than half the others' time in collectives: the others wait there for them."""
    found: dict[int, list[str]] = {}
    for (threads, channel, _), rows in timeline.groupby([*SETTING, "repeat"]):
        comm_ms = rows.set_index("rank")["total_comm_time_ms"].sort_values()
        if len(comm_ms) > 2 and comm_ms.iloc[0] < 0.5 * comm_ms.iloc[1:].median():
            least, others = comm_ms.iloc[0], comm_ms.iloc[1:].median()
            case = f"{short_name(threads, channel)}: {least:.0f} ms against {others:.0f} ms"
            found.setdefault(int(comm_ms.index[0]), []).append(case)
    return [
        f"Rank {rank} is probably the straggler: it is in collectives for much less time than the others (median), "
        f"who wait there for it ({_some(cases)})."
        for rank, cases in sorted(found.items())
    ]


def absent(configs: pd.DataFrame) -> list[str]:
    """Every configuration that is not complete, with its reason; it is in no comparison."""
    return [
        f"{long_name(int(row.threads), int(row.channel))}, repeat {row.repeat}: {row.status}"
        f"{f' ({row.reason})' if row.reason and not pd.isna(row.reason) else ''}; left out of the comparison."
        for row in configs[configs["status"] != "ok"].itertuples()
    ]


def cpu_only(ranked: list[Contender]) -> list[str]:
    """Instead of a winner: what CPU runs can tell. Gloo knows neither channels nor GPU threads."""
    sentences = [
        "These runs were on a CPU with gloo, which has no channels and no GPU threads: neither setting can have had an "
        "effect, so no configuration wins.",
        "CPU operators stand in for GPU kernels in every figure here.",
    ]
    if len(ranked) > 1:
        sentences.append(
            f"Total times from {ranked[0].median_ms:.1f} to {ranked[-1].median_ms:.1f} ms show this machine's own variation."
        )
    return sentences


def size_text(size_bytes: float) -> str:
    """A message size as people say it: `8 MiB`; `?` where it is not known."""
    if not size_bytes > 0:
        return "?"
    power = min(3, int(math.log2(size_bytes) // 10))
    return f"{size_bytes / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def shape_name(row: Any) -> str:
    """`mm 4096×8192×2048 bf16`: op, then M×N×K, a batch in front where there is one."""
    op = str(row.op).removeprefix("aten::")
    batch = f"{row.B}·" if row.B and row.B > 1 else ""
    return f"{op} {batch}{row.M}×{row.N}×{row.K} {row.transpose}"


def _ordered(verdicts: Iterable[Any]) -> list[Any]:
    order = ["honoured", "clamped", "ignored", "unknown"]
    return sorted(verdicts, key=lambda verdict: order.index(verdict) if verdict in order else len(order))


def _pattern_sentence(knob: str, pattern: tuple[tuple[str, tuple[float, ...]], ...], rows: pd.DataFrame) -> str:
    asked = ", ".join(str(int(value)) for value in sorted(rows[f"requested_{knob}"].unique()))
    if len(pattern) == 1 and pattern[0][0] == "honoured":
        return f"{knob.capitalize()} {asked}: honoured at every message size."
    clauses = [_clause(knob, verdict, sizes, rows) for verdict, sizes in pattern]
    return f"{knob.capitalize()} {asked}: {'; '.join(clauses)}."


def _clause(knob: str, verdict: str, sizes: tuple[float, ...], rows: pd.DataFrame) -> str:
    at = " and ".join(filter(None, [", ".join(map(size_text, sizes[:-1])), size_text(sizes[-1])]))
    if verdict == "unknown":
        return f"unknown at {at}, as the trace holds no launch sizes"
    if verdict == "honoured":
        return f"honoured at {at}"
    pairs = rows.loc[rows[f"{knob}_verdict"] == verdict, [f"requested_{knob}", f"effective_{knob}"]]
    arrows = [f"{int(asked)} -> {int(got)}" for asked, got in pairs.drop_duplicates().sort_values(list(pairs)).values]
    return f"{verdict} ({_some(arrows)}) at {at}"


def _worst_shape(rows: pd.DataFrame) -> str:
    median_us = rows.groupby([*GEMM_SHAPE, *SETTING], dropna=False)["median_us"].median().unstack(SETTING).dropna()
    if median_us.empty:
        return ""
    count = rows.groupby(GEMM_SHAPE, dropna=False)["n"].median().reindex(median_us.index)
    lost = ((median_us.max(axis=1) - median_us.min(axis=1)) * count).argmax()
    shape = pd.Series(dict(zip(GEMM_SHAPE, median_us.index[lost], strict=True)))
    times_us = median_us.iloc[lost]
    return (
        f"; {shape_name(shape)} loses most, with a median of {times_us.min():.0f} µs against {times_us.max():.0f} µs "
        f"({times_us.max() / times_us.min():.2f} times)"
    )


def _some(texts: list[str], most: int = 4) -> str:
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")
