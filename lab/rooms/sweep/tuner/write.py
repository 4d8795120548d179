"""The tuner's files: what to set, and the evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lab.core.files import write_atomic
from lab.report.tables import write_csv
from lab.rooms.sweep.how import NAMES
from lab.rooms.sweep.tables import column_names
from lab.rooms.sweep.tuner.file import text_of
from lab.rooms.sweep.tuner.judge import Decision, Judged, class_text
from lab.rooms.sweep.tuner.observe import Ran

FILES = {"nccl": "nccl_tuner.conf", "rccl": "rccl_tuner.csv"}
THREADS = {"nccl": "NCCL_NTHREADS", "rccl": "RCCL_THREADS_PER_BLOCK"}
EVIDENCE = column_names(
    "collective msg_bytes ranks threads channels requested_algorithm requested_protocol runs cost_ms "
    "without_waiting_ms latency_us used_channels used_threads algorithm protocol inferred "
    "may_be_best needed_ms set reason"
)


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
    reasons = [f"{class_text(one.name)}: {one.reason}." for one in left]
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
                "cost_ms": _mean([each.cost.cost_ms for each in observed]),
                "without_waiting_ms": _mean([each.cost.least_ms for each in observed]),
                "latency_us": _mean([each.cost.latency_us for each in observed]),
                "used_channels": example.cost.grid,
                "used_threads": example.cost.block,
                "algorithm": example.choice.algorithm if example.choice else "",
                "protocol": example.choice.protocol if example.choice else "",
                "inferred": example.inferred,
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
