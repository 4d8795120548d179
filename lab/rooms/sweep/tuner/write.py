"""The tuner's files (what to set, and the evidence), and whether a run under them did what they say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lab.core.files import write_atomic
from lab.core.words import plural
from lab.recordings.ranks.costs import Class
from lab.report.tables import write_csv
from lab.rooms.sweep.effective import BLOCK, NAMES, Choice, LogChoices
from lab.rooms.sweep.tables import column_names
from lab.rooms.sweep.tuner.file import Row, text_of
from lab.rooms.sweep.tuner.judge import Decision, Judged, Ran, class_text

FILES = {"nccl": "nccl_tuner.conf", "rccl": "rccl_tuner.csv"}
THREADS = {"nccl": "NCCL_NTHREADS", "rccl": "RCCL_THREADS_PER_BLOCK"}
EVIDENCE = column_names(
    "collective msg_bytes ranks threads channels requested_algorithm requested_protocol runs cost_ms "
    "without_waiting_ms latency_us used_channels used_threads algorithm protocol inferred "
    "may_be_best needed_ms set reason"
)
TOOK_EFFECT, REFUTED, UNPROVEN = "took effect", "did not take effect", "not proven"


def write_tuner(runs: Sequence[Ran], judged: Judged, library: str, out: Path, *, source: str) -> list[Path]:
    """Write the tuner's file and tuner.csv (the evidence) below `out`. Raises StorageError if that fails."""
    rows = [decision.row for decision in judged.decisions if decision.row]
    path = out / FILES[library]
    settings = f"NCCL_TUNER_CONFIG_FILE={path.name}"
    if library == "nccl":
        settings += " NCCL_TUNER_PLUGIN=PATH/libnccl-tuner-example.so"
    if judged.threads is not None:
        settings += f" {THREADS[library]}={judged.threads}"
    varied = "" if len({ran.knobs[2:] for ran in runs}) > 1 else "; the sweep did not vary them"
    comments = [
        f"What is best per collective and size, from the sweep {source}: by what its transfer and the GEMMs "
        "that it slows cost a step, with waiting for late ranks taken out.",
        f"Use: {settings}, and none of NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS, NCCL_ALGO and "
        "NCCL_PROTO, which forbid what a row may ask for.",
        f"Threads cannot be set here: {judged.thread_reason}.",
        f"Algorithm and protocol are those that ran{varied}.",
    ]
    write_atomic(path, text_of(rows, comments, _notes(judged)).encode())
    evidence = pd.DataFrame(
        [row for decision in judged.decisions for row in _evidence(decision, runs)], columns=EVIDENCE
    )
    return [path, write_csv(evidence, out / "tuner.csv")]


def _notes(judged: Judged) -> list[str]:
    left = [decision for decision in judged.decisions if decision.row is None]
    reasons = [f"{class_text(decision.name)}: {decision.reason}." for decision in left]
    notes = ["Left at default:", *reasons] if reasons else []
    return [*notes, *(f"{text}." for text in judged.left_out)]


def _evidence(decision: Decision, runs: Sequence[Ran]) -> list[dict[str, Any]]:
    rows = []
    for index, knobs in enumerate(decision.settings):
        observed = [
            ran.classes[decision.name] for ran in runs if ran.knobs == knobs and decision.name in ran.classes
        ]
        example = observed[0]
        rows.append(
            {
                "collective": NAMES.get(decision.name.kind, decision.name.kind),
                "msg_bytes": decision.name.num_bytes,
                "ranks": decision.name.num_ranks,
                "threads": knobs.threads,
                "channels": knobs.channel,
                "requested_algorithm": knobs.algorithm,
                "requested_protocol": knobs.protocol,
                "runs": len(observed),
                "cost_ms": _mean([run.cost.cost_ms for run in observed]),
                "without_waiting_ms": _mean([run.cost.least_ms for run in observed]),
                "latency_us": _mean([run.cost.latency_us for run in observed]),
                "used_channels": example.cost.grid,
                "used_threads": example.cost.block,
                "algorithm": example.choice.algorithm,
                "protocol": example.choice.protocol,
                "inferred": example.choice.evidence == BLOCK,
                "may_be_best": None if decision.cost is None else index in decision.cost.candidates,
                "needed_ms": math.nan if decision.cost is None else round(decision.cost.needed, 4),
                "set": decision.row is not None
                and index in (decision.cost.candidates if decision.cost else ()),
                "reason": decision.reason,
            }
        )
    return rows


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4)


@dataclass(frozen=True)
class Proof:
    """What is known about one row of the file in one run."""

    row: Row
    verdict: str
    text: str


def prove(rows: Sequence[Row], grids: dict[Class, Counter[int]], log_choices: LogChoices) -> list[Proof]:
    """One proof per row. grids: how many kernels of each class ran on how many blocks; said: the run's logs.

    A row took effect if the log says that a tuner applied it, NCCL's own line gives its algorithm and
    protocol, and every kernel of its sizes ran on as many blocks as it has channels.
    """
    log_choices = log_choices.of_calls(
        (NAMES.get(name.kind, ""), name.num_bytes, name.num_ranks) for name in grids
    )
    return [_prove(row, grids, log_choices) for row in rows]


def _prove(row: Row, grids: dict[Class, Counter[int]], log_choices: LogChoices) -> Proof:
    grid_counts = {
        name: num_calls
        for name, num_calls in grids.items()
        if row.matches(NAMES.get(name.kind, ""), name.num_bytes, name.num_ranks)
    }
    if not grid_counts:
        return Proof(row, UNPROVEN, f"no collective of the run is in its range: {row.text()}")
    wrong: list[str] = []
    open_: list[str] = []
    requested = Choice(row.algorithm, row.protocol)
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
        elif set(choices) != {requested}:
            logged = " and ".join(sorted(" ".join(choice) for choice in choices))
            wrong.append(f"{text}: {row.algorithm} {row.protocol} is set, the log says {logged}")
        if requested not in log_choices.applied.get(key, ()):  # it may have applied another row
            open_.append(f"{text}: no line of the log says that a tuner applied it")
    if wrong:
        return Proof(row, REFUTED, "; ".join(wrong))
    if open_:
        return Proof(row, UNPROVEN, "; ".join([*open_, *_plugin(log_choices)]))
    kernels = sum(sum(num_calls.values()) for num_calls in grid_counts.values())
    lines = sum(log_choices.applied[row.collective, name.num_bytes][requested] for name in grid_counts)
    names = ", ".join(class_text(name) for name in grid_counts)
    blocks = f"{plural(kernels, 'kernel')} on {row.channels} blocks" if row.channels > 0 else "channels kept"
    evidence = f"{row.algorithm} {row.protocol} by the log, applied by the tuner in {plural(lines, 'line')}"
    return Proof(row, TOOK_EFFECT, f"{names}: {blocks}, {evidence}")


def _plugin(log_choices: LogChoices) -> list[str]:
    """What the log says about the plugin, where that may be the reason."""
    return [f"the log says: {text}" for text, _ in log_choices.plugin.most_common(2)]
