"""Whether the requested channels, threads, algorithm and protocol took effect, per message size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lab.core.words import first_few
from lab.recordings.views.timeline import GLOO_PREFIX
from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.names import long_name, size_text
from lab.rooms.sweep.tables import SETTING, grouped

if TYPE_CHECKING:
    import pandas as pd

WORDS = ("algorithm", "protocol")


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
        used = first_few(sorted(set(ignored[f"effective_{word}"])))
        return f"{used} was used at {_sizes_text(tuple(sorted(ignored['msg_bytes'].unique())))}"
    unknown = asked[asked[f"{word}_verdict"] == "unknown"]
    if len(unknown):
        sizes = _sizes_text(tuple(sorted(unknown["msg_bytes"].unique())))
        return f"neither the log nor the kernels' blocks tell it at {sizes}"
    return None


def honoured(effective: pd.DataFrame, knob: str) -> list[str]:
    """Requested against effective values of `knob` (channels, ...), one sentence per pattern over sizes."""
    import pandas as pd

    patterns: dict[tuple[tuple[str, tuple[float, ...]], ...], list[pd.DataFrame]] = {}
    asked = effective[f"requested_{knob}"]
    requested = effective[asked != "" if knob in WORDS else asked > 0]
    for _, rows in requested.groupby(f"requested_{knob}"):
        sizes = rows.groupby(f"{knob}_verdict")["msg_bytes"].unique()
        pattern = tuple((str(verdict), tuple(sorted(sizes[verdict]))) for verdict in _ordered(sizes.index))
        patterns.setdefault(pattern, []).append(rows)
    return [_pattern_sentence(knob, pattern, pd.concat(rows)) for pattern, rows in patterns.items()]


def _pattern_sentence(
    knob: str, pattern: tuple[tuple[str, tuple[float, ...]], ...], rows: pd.DataFrame
) -> str:
    values = ", ".join(map(str, sorted(rows[f"requested_{knob}"].unique())))
    if len(pattern) == 1 and pattern[0][0] == "honoured":
        return f"{knob.capitalize()} {values}: honoured at every message size."
    clauses = [_clause(knob, verdict, sizes, rows) for verdict, sizes in pattern]
    return f"{knob.capitalize()} {values}: {'; '.join(clauses)}."


def _clause(knob: str, verdict: str, sizes: tuple[float, ...], rows: pd.DataFrame) -> str:
    sizes_text = _sizes_text(sizes)
    if verdict == "unknown":
        reason = "neither log nor kernels tell it" if knob in WORDS else "the trace holds no launch sizes"
        return f"unknown at {sizes_text}, because {reason}"
    if verdict == "honoured":
        return f"honoured at {sizes_text}"
    columns = [f"requested_{knob}", f"effective_{knob}"]
    rows = rows[rows[f"{knob}_verdict"] == verdict]
    if knob == "channels":  # without a grid the log has told
        used = rows[columns[1]].where(rows[columns[1]] > 0, rows["log_channels"])
        rows = rows.assign(**{columns[1]: used})
    pairs = rows[columns].drop_duplicates().sort_values(columns)
    arrows = first_few([f"{before} -> {after}" for before, after in pairs.to_numpy()])
    in_log = knob == "channels" and bool((rows["log_channels"] >= rows["requested_channels"]).all())
    return f"{verdict} ({arrows}{', though the log reports all of them' if in_log else ''}) at {sizes_text}"


def _sizes_text(sizes: tuple[float, ...]) -> str:
    texts = [size_text(size) for size in sizes]
    if len(texts) > 4:
        return f"{len(texts)} sizes from {texts[0]} to {texts[-1]}"
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _ordered(verdicts: Iterable[Any]) -> list[Any]:
    order = ["honoured", "clamped", "ignored", "unknown"]
    return sorted(verdicts, key=lambda verdict: order.index(verdict) if verdict in order else len(order))
