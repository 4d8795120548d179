"""The sweep's tables from the figures of each rank."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.core.words import first_few, plural
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import holes
from lab.rooms.sweep.effective import (
    NAMES,
    WORDS,
    LogChoices,
    channels_verdict,
    how_of,
    read_logs,
    threads_verdict,
    verdict_over_sizes,
    word_verdict,
)
from lab.rooms.sweep.knobs import serves
from lab.rooms.sweep.layout import ConfigDir
from lab.rooms.sweep.rank import RankFigures, differences
from lab.rooms.sweep.tables import (
    CONFIGS,
    EFFECTIVE,
    GEMM,
    GEMM_KEY,
    KEY,
    PROBLEMS,
    TIMELINE,
    TIMELINE_MS,
    Planned,
    SweepTables,
)
from lab.stats import robust

_BY_RANK = [*KEY, "rank"]
# Columns and order of each table.
_TABLES = {
    "timeline": (TIMELINE, _BY_RANK),
    "effective": (EFFECTIVE, [*_BY_RANK, "collective", "msg_bytes"]),
    "gemm": (GEMM, [*_BY_RANK, *GEMM_KEY]),
    "configs": (CONFIGS, KEY),
    "problems": (PROBLEMS, _BY_RANK),
}


def sweep_tables(
    folder: Path,
    configs: Sequence[ConfigDir],
    read: Sequence[Sequence[RankFigures]],
    planned: Planned,
) -> SweepTables:
    """The sweep's tables from each configuration's ranks; files are relative to `folder`.

    planned: the steps in a run's manifest, so that a step that failed or never ran has a row too.
    """
    parts = [_of_config(config, ranks, planned) for config, ranks in zip(configs, read, strict=True)]
    parts += _never_seen(configs, planned)
    rows = {name: [row for part in parts for row in part.get(name, [])] for name in _TABLES}
    _make_relative(rows, folder)
    frames = {
        name: pd.DataFrame(rows[name], columns=columns).sort_values(order, kind="stable", ignore_index=True)
        for name, (columns, order) in _TABLES.items()
    }
    return SweepTables(**frames)


def _of_config(
    config: ConfigDir, ranks: Sequence[RankFigures], planned: Planned
) -> dict[str, list[dict[str, Any]]]:
    key = config.key._asdict()
    log_choices, log_problem = _from_logs(config)
    from_log = log_choices.channels
    log_choices = log_choices.of_calls(
        (NAMES.get(row["kind"], ""), row["msg_bytes"], row["group_size"])
        for figures in ranks
        for row in figures.collectives
    )
    effective = [
        _effective_row({**key, "rank": figures.rank}, row, from_log, log_choices)
        for figures in ranks
        for row in figures.collectives
    ]
    good = [figures for figures in ranks if figures.timeline]
    summary = {
        **key,
        **_status(config, ranks, planned.get(config.key, ("ok", ""))),
        **_medians(good),
        **{
            f"{knob}_verdict": verdict_over_sizes(
                (row["msg_bytes"], row[f"{knob}_verdict"]) for row in effective
            )
            if getattr(config, knob) != ""
            else ""
            for knob in ("channels", "threads", *WORDS)
        },
        "log_channels": from_log,
    }
    return {
        "timeline": [{**key, "rank": o.rank, **(o.timeline or {}), "file": str(o.path)} for o in good],
        "effective": effective,
        "gemm": [{**key, "rank": figures.rank, **row} for figures in ranks for row in figures.gemm],
        "configs": [summary],
        "problems": [*log_problem, *_problem_rows(config, ranks, key)],
    }


def _status(config: ConfigDir, ranks: Sequence[RankFigures], planned: tuple[str, str]) -> dict[str, Any]:
    good = {rank.rank for rank in ranks if rank.timeline}
    num_expected = max([rank.world_size or 0 for rank in ranks] + [max(good, default=-1) + 1])
    wanted_ranks = set(range(num_expected) if config.wanted_ranks is None else config.wanted_ranks)
    missing = sorted(wanted_ranks - good)
    status, reason = "ok", ""
    if not config.traces:
        status, reason = "missing", "no traces in its folder"
    elif not good:
        status, reason = "broken", f"none of its {plural(len(ranks), 'trace')} can be read"
    elif missing:
        status, reason = (
            "incomplete",
            f"{len(missing)} of {plural(len(wanted_ranks), 'rank')} without a readable trace"
            + "".join(f"; {text}" for text in _twice(config, ranks)),
        )
    elif twice := _twice(config, ranks):
        status, reason = "incomplete", "; ".join(twice)
    elif torn := [rank for rank in ranks if holes(rank.lacks)]:
        texts = [f"rank {rank.rank}: {sentences(holes(rank.lacks))[0]}" for rank in torn]
        status, reason = "incomplete", first_few(texts)
    # A step that failed may have left some traces, so the manifest decides.
    if planned[0] != "ok":
        status, reason = "failed", _reason(*planned)
    return {
        "status": status,
        "reason": reason,
        "ranks_found": len(good),
        "ranks_expected": num_expected,
        "missing_ranks": ", ".join(map(str, missing)),
    }


def _twice(config: ConfigDir, ranks: Sequence[RankFigures]) -> list[str]:
    """A sentence for each rank that several traces say they are: at most one of them can be."""
    files: dict[int, list[str]] = {}
    for figures in ranks:
        if figures.timeline and figures.rank >= 0:
            files.setdefault(figures.rank, []).append(os.path.relpath(figures.path, config.path))
    return [
        f"rank {rank} is in {plural(len(names), 'trace')}: {first_few(names)}"
        for rank, names in files.items()
        if len(names) > 1
    ]


def _medians(good: list[RankFigures]) -> dict[str, Any]:
    """Median over ranks of each figure; the slowest rank waits least, so it has the least communication."""
    rows = [figures.timeline for figures in good if figures.timeline]
    medians: dict[str, Any] = {name: robust.median([row[name] for row in rows]) for name in TIMELINE_MS}
    comm = [row["total_comm_time_ms"] for row in rows]
    medians["slowest_rank"] = good[int(np.argmin(comm))].rank if len(good) > 1 and max(comm) > 0 else -1
    return medians


def _problem_rows(
    config: ConfigDir, ranks: Sequence[RankFigures], key: Mapping[str, Any]
) -> Iterable[dict[str, Any]]:
    differ = differences({figures.rank: figures.about for figures in ranks if figures.timeline})
    for text in (*config.notes, *differ):
        yield {**key, "rank": -1, "file": str(config.path), "what": text, "fix": ""}
    for figures in ranks:
        row = {**key, "rank": figures.rank, "file": str(figures.path)}
        if figures.error:
            yield {**row, "what": figures.error[0], "fix": figures.error[1]}
        for problem in figures.problems:
            yield {**row, "what": problem, "fix": ""}


def _never_seen(configs: Sequence[ConfigDir], planned: Planned) -> list[dict[str, list[dict[str, Any]]]]:
    """Rows for what is in the manifest but not in the folder."""
    rows: list[dict[str, Any]] = []
    for key in planned.keys() - {config.key for config in configs}:
        status, reason = "failed", _reason(*planned[key])
        if planned[key][0] == "ok":
            status, reason = "missing", "succeeded according to the manifest, but its folder is gone"
        row: dict[str, Any] = {**key._asdict(), "status": status, "reason": reason, "missing_ranks": ""}
        row |= {"ranks_found": 0, "ranks_expected": 0, "slowest_rank": -1, "log_channels": -1}
        row |= {"channels_verdict": "unknown", "threads_verdict": "unknown"}
        rows.append(row | {f"{word}_verdict": "unknown" if row[word] else "" for word in WORDS})
    return [{"configs": rows}]


def _from_logs(config: ConfigDir) -> tuple[LogChoices, list[dict[str, Any]]]:
    """What NCCL's logs say, and a row for a log that cannot be read."""
    try:
        return read_logs(config.nccl_logs), []
    except OSError as error:
        row: dict[str, Any] = config.key._asdict()
        row |= {"rank": -1, "file": str(error.filename), "what": f"the NCCL log cannot be read: {error}"}
        fix = "make it readable; until then channels are judged by the grid alone"
        return LogChoices(), [row | {"fix": fix}]


def _effective_row(
    key: dict[str, Any], row: Mapping[str, Any], from_log: int, log_choices: LogChoices
) -> dict[str, Any]:
    channels, threads, kind = row["effective_channels"], row["effective_threads"], row["kind"]
    choice = how_of(
        log_choices, kind, row["msg_bytes"], kernel=row["kernel"], block=threads, threads=key["threads"]
    )
    algorithm = key["algorithm"] if serves(key["algorithm"], kind) else ""
    protocol = key["protocol"] if kind in NAMES else ""
    return {
        **key,
        **row,
        "requested_channels": key["channel"],
        "requested_threads": key["threads"],
        "log_channels": from_log,
        "channels_verdict": channels_verdict(key["channel"], channels, from_log),
        "threads_verdict": threads_verdict(key["threads"], threads),
        "requested_algorithm": algorithm,
        "effective_algorithm": choice.algorithm,
        "algorithm_verdict": word_verdict(algorithm, choice.algorithm),
        "requested_protocol": protocol,
        "effective_protocol": choice.protocol,
        "protocol_verdict": word_verdict(protocol, choice.protocol),
        "evidence": choice.evidence,
    }


def _reason(status: str, reason: str) -> str:
    return reason if status == "failed" and reason else f"{status}: {reason}".removesuffix(": ")


def _make_relative(rows: Mapping[str, list[dict[str, Any]]], folder: Path) -> None:
    """Make file names relative to `folder`, so that a recording gives the same tables wherever it lies."""
    # At the start of a text, or in the brackets of an error.
    prefix = re.compile(rf"(^|(?<=\()){re.escape(str(folder))}/")
    for name, columns in (("timeline", ["file"]), ("problems", ["file", "what"])):
        for row in rows[name]:
            row.update({column: prefix.sub("", row[column]) for column in columns})
