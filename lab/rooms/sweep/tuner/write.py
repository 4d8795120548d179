"""The tuner's files: what to set, the evidence, and the input of NCCL's own optimiser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lab.core.files import write_atomic
from lab.recordings.pairing.kinds import bus_factor
from lab.report.tables import write_csv
from lab.rooms.sweep.how import NAMES
from lab.rooms.sweep.tables import column_names
from lab.rooms.sweep.tuner.file import Row, text_of
from lab.rooms.sweep.tuner.judge import Decision, Judged, class_text
from lab.rooms.sweep.tuner.observe import Ran

FILES = {"nccl": "nccl_tuner.conf", "rccl": "rccl_tuner.csv"}
THREADS = {"nccl": "NCCL_NTHREADS", "rccl": "RCCL_THREADS_PER_BLOCK"}
EVIDENCE = column_names(
    "collective msg_bytes ranks threads channels requested_algorithm requested_protocol runs cost_ms "
    "without_waiting_ms latency_us used_channels used_threads algorithm protocol inferred "
    "may_be_best needed_ms set reason"
)
# The columns that NCCL's example `optimize_config.py` reads.
INPUT = column_names(
    "collective size_bytes algorithm protocol channels nodes ranks pipeOps regBuff cost_metric "
    "bandwidth_gbps latency_us"
)


def variables(library: str, judged: Judged, file: str, plugin: str | None = None) -> dict[str, str]:
    """The variables that make a job use the file; without NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS."""
    env = {"NCCL_TUNER_CONFIG_FILE": file}
    if library == "nccl":
        env["NCCL_TUNER_PLUGIN"] = plugin or "PATH/libnccl-tuner-example.so"
    if judged.threads is not None:
        env[THREADS[library]] = str(judged.threads)
    return env


def write_tuner(runs: Sequence[Ran], judged: Judged, library: str, out: Path, *, source: str) -> list[Path]:
    """Write the tuner's file, tuner.csv (the evidence) and tuner_input.csv below `out`.

    Raises StorageError if that fails.
    """
    rows = [decision.row for decision in judged.decisions if decision.row]
    path = out / FILES[library]
    settings = " ".join(f"{name}={value}" for name, value in variables(library, judged, path.name).items())
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
    inputs = pd.DataFrame([row for ran in runs for row in _inputs(ran)], columns=INPUT)
    return [path, write_csv(evidence, out / "tuner.csv"), write_csv(inputs, out / "tuner_input.csv")]


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


def _inputs(ran: Ran) -> list[dict[str, Any]]:
    """One row per class of a run, where algorithm and protocol are known."""
    rows = []
    for name, observation in ran.classes.items():
        if (
            observation.choice is None
            or name.kind not in NAMES
            or not observation.cost.latency_us > 0
            or name.num_bytes <= 0
        ):
            continue
        algorithm_bw = name.num_bytes / observation.cost.latency_us / 1e3
        rows.append(
            {
                "collective": NAMES[name.kind],
                "size_bytes": name.num_bytes,
                "algorithm": observation.choice.algorithm,
                "protocol": observation.choice.protocol,
                "channels": observation.cost.grid,
                "nodes": ran.hosts,
                "ranks": name.num_ranks,
                "pipeOps": -1,
                "regBuff": -1,
                "cost_metric": round(observation.cost.cost_ms, 4),
                "bandwidth_gbps": round(algorithm_bw * bus_factor(name.kind, name.num_ranks), 2),
                "latency_us": round(observation.cost.latency_us, 3),
            }
        )
    return rows


def row_json(row: Row) -> dict[str, Any]:
    return dict(vars(row))
