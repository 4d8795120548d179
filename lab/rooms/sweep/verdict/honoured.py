"""Whether the requested channels, threads, algorithm and protocol took effect, per message size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.core.words import first_few
from lab.recordings.views.launches import GLOO_PREFIX
from lab.rooms.sweep.effective import verdict_over_sizes
from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.tables import SETTING, grouped, long_name, size_text

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
