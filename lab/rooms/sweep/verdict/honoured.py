"""Whether the requested channels and threads took effect, per message size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from lab.rooms.sweep.names import first_few, size_text


def honoured(effective: pd.DataFrame, knob: str) -> list[str]:
    """Requested against effective `channels` or `threads` (`knob`), one sentence per pattern over sizes."""
    patterns: dict[tuple[tuple[str, tuple[float, ...]], ...], list[pd.DataFrame]] = {}
    requested = effective[effective[f"requested_{knob}"] > 0]
    for _, rows in requested.groupby(f"requested_{knob}"):
        sizes = rows.groupby(f"{knob}_verdict")["msg_bytes"].unique()
        pattern = tuple((str(verdict), tuple(sorted(sizes[verdict]))) for verdict in _ordered(sizes.index))
        patterns.setdefault(pattern, []).append(rows)
    return [_pattern_sentence(knob, pattern, pd.concat(rows)) for pattern, rows in patterns.items()]


def _pattern_sentence(
    knob: str, pattern: tuple[tuple[str, tuple[float, ...]], ...], rows: pd.DataFrame
) -> str:
    values = ", ".join(str(int(value)) for value in sorted(rows[f"requested_{knob}"].unique()))
    if len(pattern) == 1 and pattern[0][0] == "honoured":
        return f"{knob.capitalize()} {values}: honoured at every message size."
    clauses = [_clause(knob, verdict, sizes, rows) for verdict, sizes in pattern]
    return f"{knob.capitalize()} {values}: {'; '.join(clauses)}."


def _clause(knob: str, verdict: str, sizes: tuple[float, ...], rows: pd.DataFrame) -> str:
    at = _sizes_text(sizes)
    if verdict == "unknown":
        return f"unknown at {at}, because the trace holds no launch sizes"
    if verdict == "honoured":
        return f"honoured at {at}"
    columns = [f"requested_{knob}", f"effective_{knob}"]
    rows = rows[rows[f"{knob}_verdict"] == verdict]
    pairs = rows[columns].drop_duplicates().sort_values(columns)
    arrows = first_few([f"{int(before)} -> {int(after)}" for before, after in pairs.to_numpy()])
    in_log = knob == "channels" and bool((rows["log_channels"] >= rows["requested_channels"]).all())
    return f"{verdict} ({arrows}{', though the log reports all of them' if in_log else ''}) at {at}"


def _sizes_text(sizes: tuple[float, ...]) -> str:
    texts = [size_text(size) for size in sizes]
    if len(texts) > 4:
        return f"{len(texts)} sizes from {texts[0]} to {texts[-1]}"
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _ordered(verdicts: Iterable[Any]) -> list[Any]:
    order = ["honoured", "clamped", "ignored", "unknown"]
    return sorted(verdicts, key=lambda verdict: order.index(verdict) if verdict in order else len(order))
