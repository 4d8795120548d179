"""The sweep's findings in words, computed from its tables and claiming no more than the runs can carry.

Every function takes tables of `lab.rooms.sweep.analyze.SweepTables` and gives a sentence, or None where the
tables hold nothing to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

SETTING = ["threads", "channel"]
NOTABLE = 0.05  # a change of a GEMM's median time that is worth a word
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
    return (
        " ".join(f"{value}{word}" for value, word in ((threads, "t"), (channel, "ch")) if value) or "unnamed"
    )


def contenders(configs: pd.DataFrame) -> list[Contender]:
    """Complete configurations, least median total time first; failed and incomplete ones never enter."""
    complete = configs[(configs["status"] == "ok") & configs["total_time_ms"].notna()]
    groups = complete.groupby(SETTING, sort=True)["total_time_ms"]
    found = [Contender(int(key[0]), int(key[1]), tuple(map(float, totals))) for key, totals in groups]
    return sorted(found, key=lambda one: one.median_ms)


def origin(kind: str) -> str | None:
    """What numbers of this kind are, where they were not measured by this run."""
    return {
        "replayed": "The numbers are replayed from a recording made elsewhere.",
        "synthetic": "The numbers are synthetic: they exercise the path and measure no hardware.",
    }.get(kind)


def on_cpu(timeline: pd.DataFrame) -> bool:
    return len(timeline) > 0 and bool((timeline["device"] == "cpu").all())


def tied(ranked: list[Contender]) -> bool:
    """Whether the first two both have repeats, and these overlap."""
    repeated = len(ranked) > 1 and all(len(one.totals_ms) > 1 for one in ranked[:2])
    return repeated and max(ranked[0].totals_ms) >= min(ranked[1].totals_ms)


def uneven_steps(timeline: pd.DataFrame, configs: pd.DataFrame) -> str | None:
    """Windows of different length hold different work, so their times do not compare."""
    steps = sorted(set(of_complete(timeline, configs)["steps"]))
    if len(steps) < 2:
        return None
    counts = " and ".join(map(str, steps))
    return f"The traces hold {counts} profiled steps: total times do not compare, so no configuration wins."


def headline(ranked: list[Contender]) -> str:
    """Which configuration has the least total time and by how much."""
    if not ranked:
        return "No configuration was analysed completely, so there is no result."
    best = ranked[0]
    if len(ranked) == 1:
        return (
            f"Only {best.name} was analysed completely: {best.median_ms:.1f} ms total time (median over "
            "ranks), with nothing to compare it to."
        )
    second = ranked[1]
    if tied(ranked):
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
        whom = (
            "These are one run each" if max(runs) == 1 else "One of the first two has only one complete run"
        )
        return f"{whom}: the order may be chance, so no claim of significance can be made without repeats."
    spans = [f"{min(one.totals_ms):.1f} to {max(one.totals_ms):.1f} ms" for one in ranked[:2]]
    counted = f"{runs[0]} repeats of the first span {spans[0]}, {runs[1]} of the second {spans[1]}"
    if tied(ranked):
        return f"The repeats overlap: {counted}."
    odds = math.comb(sum(runs), runs[0])
    return (
        f"The repeats do not overlap: {counted}. Two equal configurations would fall so by chance once in "
        f"{odds} sweeps, before counting that the best of several was picked."
    )


def exposed_share(configs: pd.DataFrame) -> str | None:
    """How much of the total time is communication that nothing hides."""
    complete = configs[configs["status"] == "ok"]
    share = (complete["exposed_comm_time_ms"] / complete["total_time_ms"]).groupby(
        [complete[key] for key in SETTING]
    )
    shares = share.median().dropna().sort_values()
    if shares.empty or not shares.max():
        return None
    low, high = shares.index[0], shares.index[-1]
    if f"{shares.iloc[0]:.2f}" == f"{shares.iloc[-1]:.2f}":
        return f"Exposed communication takes {100 * shares.iloc[0]:.0f} % of the total time everywhere."
    return (
        f"Exposed communication takes from {100 * shares.iloc[0]:.0f} % of the total time "
        f"({long_name(*low)}) to {100 * shares.iloc[-1]:.0f} % ({long_name(*high)})."
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
    rows = of_complete(gemm, configs)
    per_rank_ms = rows.groupby([*SETTING, "repeat", "rank"])["sum_us"].sum() / 1000
    totals_ms = per_rank_ms.groupby(SETTING).median().sort_values()
    if len(totals_ms) < 2:
        return None
    low, high = totals_ms.index[0], totals_ms.index[-1]
    sentence = (
        f"GEMMs take from {totals_ms.iloc[0]:.1f} ms per rank ({long_name(*low)}) to "
        f"{totals_ms.iloc[-1]:.1f} ms ({long_name(*high)}), {totals_ms.iloc[-1] / totals_ms.iloc[0]:.2f} "
        "times as long"
    )
    return sentence + _worst_shape(rows) + "."


def starved(gemm: pd.DataFrame, configs: pd.DataFrame) -> list[str]:
    """For each knob, how many GEMM shapes its highest value slows against its lowest, the other knob being equal."""
    found = []
    for knob, other in (SETTING, SETTING[::-1]):
        by_value = [*GEMM_SHAPE, other, knob]
        median_us = (
            of_complete(gemm, configs).groupby(by_value, dropna=False)["median_us"].median().unstack(knob)
        )
        if median_us.shape[1] < 2:
            continue
        low, high = median_us.columns[[0, -1]]
        ratio = (median_us[high] / median_us[low]).dropna().groupby(GEMM_SHAPE, dropna=False).median()
        if len(ratio):
            noun = "channels" if knob == "channel" else knob
            found.append(f"With {high} instead of {low} {noun}, {_ratio_words(ratio)}.")
    return found


def straggler(timeline: pd.DataFrame) -> str | None:
    """Ranks that spend less than half the others' time in collectives: the others wait there for them."""
    cases = []
    for (threads, channel), rows in grouped(timeline, SETTING):
        comm_ms = rows.groupby("rank")["total_comm_time_ms"].median().sort_values()
        if len(comm_ms) < 3 or comm_ms.iloc[0] >= 0.5 * comm_ms.iloc[1:].median():
            continue
        times = f"{comm_ms.iloc[0]:.0f} ms in collectives, the others {comm_ms.iloc[1:].median():.0f} ms"
        cases.append(f"rank {comm_ms.index[0]} in {short_name(threads, channel)} ({times})")
    if not cases:
        return None
    return f"One rank is late and the others wait for it inside their collectives: {_some(cases)}."


def absent(configs: pd.DataFrame) -> list[str]:
    """The configurations that are not complete, by reason; they are in no comparison."""
    by_reason: dict[str, list[str]] = {}
    for row in configs[configs["status"] != "ok"].itertuples():
        reason = f" ({row.reason})" if isinstance(row.reason, str) and row.reason else ""
        case = f"{short_name(row.threads, row.channel)} (repeat {row.repeat})"
        by_reason.setdefault(f"{row.status}{reason}", []).append(case)
    return [f"Left out, {reason}: {_some(cases)}." for reason, cases in by_reason.items()]


def cpu_only(ranked: list[Contender]) -> list[str]:
    """Instead of a winner: what CPU runs can tell. Gloo knows neither channels nor GPU threads."""
    sentences = [
        "These runs were on a CPU with gloo, which has no channels and no GPU threads: neither setting can "
        "have had an effect, so no configuration wins.",
        "CPU operators stand in for GPU kernels in every figure here.",
    ]
    if len(ranked) > 1:
        sentences.append(
            f"Total times from {ranked[0].median_ms:.1f} to {ranked[-1].median_ms:.1f} ms show this "
            "machine's own variation."
        )
    return sentences


def of_complete(frame: pd.DataFrame, configs: pd.DataFrame) -> pd.DataFrame:
    """The rows of `frame` that belong to complete repeats."""
    complete = configs.loc[configs["status"] == "ok", [*SETTING, "repeat"]].drop_duplicates()
    rows: pd.DataFrame = frame.merge(complete, on=[*SETTING, "repeat"])
    return rows


def grouped(frame: pd.DataFrame, keys: list[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """`frame.groupby(keys)` with the keys as a tuple."""
    for key, rows in frame.groupby(keys):
        yield tuple(key) if isinstance(key, tuple) else (key,), rows


def size_text(size_bytes: float) -> str:
    """A message size as people say it: `8 MiB`; `?` where it is not known."""
    if not size_bytes > 0:
        return "?"
    power = min(3, int(math.log2(size_bytes) // 10))
    return f"{size_bytes / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def shape_name(shape: tuple[Any, ...]) -> str:
    """`mm 4096×8192×2048 TN`: op, batch if any, M×N×K, transposes; `shape` in the order of GEMM_SHAPE."""
    of = dict(zip(GEMM_SHAPE, shape, strict=True))
    batch = f"{of['B']}·" if of["B"] > 1 else ""
    return f"{str(of['op']).removeprefix('aten::')} {batch}{of['M']}×{of['N']}×{of['K']} {of['transpose']}"


def _ordered(verdicts: Iterable[Any]) -> list[Any]:
    order = ["honoured", "clamped", "ignored", "unknown"]
    return sorted(verdicts, key=lambda verdict: order.index(verdict) if verdict in order else len(order))


def _pattern_sentence(
    knob: str, pattern: tuple[tuple[str, tuple[float, ...]], ...], rows: pd.DataFrame
) -> str:
    asked = ", ".join(str(int(value)) for value in sorted(rows[f"requested_{knob}"].unique()))
    if len(pattern) == 1 and pattern[0][0] == "honoured":
        return f"{knob.capitalize()} {asked}: honoured at every message size."
    clauses = [_clause(knob, verdict, sizes, rows) for verdict, sizes in pattern]
    return f"{knob.capitalize()} {asked}: {'; '.join(clauses)}."


def _clause(knob: str, verdict: str, sizes: tuple[float, ...], rows: pd.DataFrame) -> str:
    at = _sizes_text(sizes)
    if verdict == "unknown":
        return f"unknown at {at}, as the trace holds no launch sizes"
    if verdict == "honoured":
        return f"honoured at {at}"
    asked, got = f"requested_{knob}", f"effective_{knob}"
    rows = rows[rows[f"{knob}_verdict"] == verdict]
    pairs = rows[[asked, got]].drop_duplicates().sort_values([asked, got])
    arrows = _some([f"{int(before)} -> {int(after)}" for before, after in pairs.to_numpy()])
    in_log = knob == "channels" and bool((rows["log_channels"] >= rows[asked]).all())
    return f"{verdict} ({arrows}{', though the log has them all' if in_log else ''}) at {at}"


def _sizes_text(sizes: tuple[float, ...]) -> str:
    texts = [size_text(size) for size in sizes]
    if len(texts) > 4:
        return f"{len(texts)} sizes from {texts[0]} to {texts[-1]}"
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _worst_shape(rows: pd.DataFrame) -> str:
    median_us = (
        rows.groupby([*GEMM_SHAPE, *SETTING], dropna=False)["median_us"].median().unstack(SETTING).dropna()
    )
    if median_us.empty:
        return ""
    count = rows.groupby(GEMM_SHAPE, dropna=False)["n"].median().reindex(median_us.index)
    lost = ((median_us.max(axis=1) - median_us.min(axis=1)) * count).argmax()
    shape = median_us.index[lost]
    times_us = median_us.iloc[lost]
    return (
        f"; {shape_name(shape)} loses most, with a median of {times_us.min():.0f} µs against "
        f"{times_us.max():.0f} µs ({times_us.max() / times_us.min():.2f} times)"
    )


def _ratio_words(ratio: pd.Series) -> str:
    """`5 of 13 GEMM shapes take over 5 % longer (at most 15 %)`; `ratio` is new over old time per shape."""
    longer, shorter = int((ratio > 1 + NOTABLE).sum()), int((ratio < 1 - NOTABLE).sum())
    limit = f"over {100 * NOTABLE:.0f} %"
    if not longer and not shorter:
        return f"none of {len(ratio)} GEMM shapes changes by {limit}"
    more = (
        f"{longer} of {len(ratio)} GEMM shapes take {limit} longer (at most {100 * (ratio.max() - 1):.0f} %)"
    )
    less = f"{shorter} of {len(ratio)} take {limit} less (at most {100 * (1 - ratio.min()):.0f} %)"
    return " and ".join(words for words, count in ((more, longer), (less, shorter)) if count)


def _some(texts: list[str], most: int = 4) -> str:
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")
