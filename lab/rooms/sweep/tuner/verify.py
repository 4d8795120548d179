"""Whether a run under a tuner's file did what the file says: by its log and by its kernels' grids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lab.core.words import plural
from lab.recordings.ranks.costs import Class
from lab.rooms.sweep.how import NAMES
from lab.rooms.sweep.tuner.file import Row
from lab.rooms.sweep.tuner.judge import class_text
from lab.rooms.sweep.tuner.logs import Choice, Said

TOOK_EFFECT, REFUTED, UNPROVEN = "took effect", "did not take effect", "not proven"


@dataclass(frozen=True)
class Proof:
    """What is known about one row of the file in one run."""

    row: Row
    verdict: str
    text: str


def prove(rows: Sequence[Row], grids: dict[Class, Counter[int]], log_choices: Said) -> list[Proof]:
    """One proof per row. grids: how many kernels of each class ran on how many blocks; said: the run's logs.

    A row took effect if the log says that a tuner applied it, NCCL's own line gives its algorithm and
    protocol, and every kernel of its sizes ran on as many blocks as it has channels.
    """
    log_choices = log_choices.of_calls(
        (NAMES.get(name.kind, ""), name.num_bytes, name.num_ranks) for name in grids
    )
    return [_prove(row, grids, log_choices) for row in rows]


def _prove(row: Row, grids: dict[Class, Counter[int]], log_choices: Said) -> Proof:
    grid_counts = {
        name: num_calls
        for name, num_calls in grids.items()
        if row.matches(NAMES.get(name.kind, ""), name.num_bytes, name.num_ranks)
    }
    if not grid_counts:
        return Proof(row, UNPROVEN, f"no collective of the run is in its range: {row.text()}")
    wrong: list[str] = []
    open_: list[str] = []
    for name, num_calls in grid_counts.items():
        text = class_text(name)
        used = ", ".join(f"{count} on {blocks}" for blocks, count in sorted(num_calls.items()))
        if set(num_calls) == {-1}:
            open_.append(f"{text}: its kernels have no grid in the trace")
        elif row.channels > 0 and set(num_calls) != {row.channels}:
            wrong.append(f"{text}: {row.channels} channels are set, kernels ran {used} blocks")
        key = row.collective, name.num_bytes
        choices = log_choices.choices.get(key)
        if not choices:
            open_.append(f"{text}: the log has no line on its algorithm and protocol")
        elif any((choice.algorithm, choice.protocol) != (row.algorithm, row.protocol) for choice in choices):
            wrong.append(f"{text}: {row.algorithm} {row.protocol} is set, the log says {_words(choices)}")
        if not log_choices.applied.get(key):
            open_.append(f"{text}: no line of the log says that a tuner applied it")
    if wrong:
        return Proof(row, REFUTED, "; ".join(wrong))
    if open_:
        return Proof(row, UNPROVEN, "; ".join([*open_, *_plugin(log_choices)]))
    kernels = sum(sum(num_calls.values()) for num_calls in grid_counts.values())
    lines = sum(sum(log_choices.applied[row.collective, name.num_bytes].values()) for name in grid_counts)
    names = ", ".join(class_text(name) for name in grid_counts)
    blocks = f"{plural(kernels, 'kernel')} on {row.channels} blocks" if row.channels > 0 else "channels kept"
    evidence = f"{row.algorithm} {row.protocol} by the log, applied by the tuner in {plural(lines, 'line')}"
    return Proof(row, TOOK_EFFECT, f"{names}: {blocks}, {evidence}")


def _words(choices: Counter[Choice]) -> str:
    return " and ".join(sorted({f"{choice.algorithm} {choice.protocol}" for choice in choices}))


def _plugin(log_choices: Said) -> list[str]:
    """What the log says about the plugin, where that may be the reason."""
    return [f"the log says: {text}" for text, _ in log_choices.plugin.most_common(2)]
