"""A sweep's folder -> tables. One task per trace in a process pool; what cannot be read becomes a row.

Requested is not effective: `effective` sets beside each request what the kernels' grid and block, and NCCL's
own log, say happened, per collective and message size.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.errors import LabError
from lab.recordings import views
from lab.recordings.kineto import read_kineto
from lab.recordings.pool import map_traces
from lab.recordings.tables import Trace
from lab.rooms.sweep.layout import ConfigDir, TraceFile, find_configs
from lab.stats import robust

Progress = Callable[[int, int, Path], None]

KEY = ["threads", "channel", "repeat"]
TIMELINE_MS = [
    "computation_time_ms",
    "exposed_comm_time_ms",
    "exposed_memcpy_time_ms",
    "busy_time_ms",
    "idle_time_ms",
    "total_time_ms",
    "total_comm_time_ms",
    "total_memcpy_time_ms",
]
TIMELINE = [
    "threads",
    "channel",
    "rank",
    *TIMELINE_MS,
    "repeat",
    "steps",
    "device",
    "kernels",
    "unlinked_kernels",
    "file",
]
EFFECTIVE = [
    "threads",
    "channel",
    "rank",
    "collective",
    "requested_channels",
    "effective_channels",
    "requested_threads",
    "effective_threads",
    "count",
    "repeat",
    "in_nelems",
    "dtype",
    "msg_bytes",
    "log_channels",
    "channels_verdict",
    "threads_verdict",
]
GEMM_KEY = ["op", "M", "N", "K", "B", "bias", "dtype", "transpose"]
GEMM = [
    "threads",
    "channel",
    "rank",
    "repeat",
    *GEMM_KEY,
    "n",
    "mean_us",
    "median_us",
    "mad_us",
    "cv",
    "min_us",
    "p95_us",
    "max_us",
    "sum_us",
    "tflops_median",
    "strides",
]
CONFIGS = [
    *KEY,
    "status",
    "reason",
    "ranks_found",
    "ranks_expected",
    "missing_ranks",
    *TIMELINE_MS,
    "slowest_rank",
    "channels_verdict",
    "threads_verdict",
    "log_channels",
]
PROBLEMS = ["threads", "channel", "repeat", "rank", "file", "what", "fix"]

# NCCL adds a warp of its own to the block it was asked for.
NCCL_EXTRA_THREADS = 32
_LOG_CHANNELS = re.compile(rb"(\d{1,6}) coll channels")
_MIB = 1 << 20


@dataclass(frozen=True)
class SweepTables:
    """The analysis as DataFrames; their columns are the lists at the top of this module.

    Durations in ms or us as named. channel, threads 0 and effective_* -1 mean unknown; missing_ranks is text
    like `1, 5`. timeline has a row per trace, configs one per configuration and repeat, come what may.
    slowest_rank waits least for the others, so it has the least communication time (-1: one rank, or none).
    """

    timeline: pd.DataFrame
    effective: pd.DataFrame
    gemm: pd.DataFrame
    configs: pd.DataFrame
    problems: pd.DataFrame


def analyze(
    folder: Path | str,
    *,
    expected: Sequence[Mapping[str, Any]] | None = None,
    workers: int = 2,
    progress: Progress | None = None,
) -> SweepTables:
    """Read every trace below `folder` and put the sweep's tables together.

    expected: rows threads, channel, repeat, status, reason of a run's manifest, so that what failed or never
    ran has a row too. workers: processes that read side by side; 1 reads here. progress is called with
    (traces done, traces in all, path) after each. Raises MissingError if there is nothing to read.
    """
    expected = list(expected or [])
    configs = _configs(Path(folder), expected)
    traces = [trace for config in configs for trace in config.traces]
    tell = None if progress is None else lambda done, total, trace: progress(done, total, trace.path)
    results = iter(map_traces(read_rank, traces, workers=workers, progress=tell))
    read = [[_figures(trace, next(results)) for trace in config.traces] for config in configs]
    return put_together(Path(folder), configs, read, expected)


def put_together(
    folder: Path,
    configs: Sequence[ConfigDir],
    read: Sequence[Sequence[RankFigures]],
    expected: Sequence[Mapping[str, Any]],
) -> SweepTables:
    """The sweep's tables from the figures of each configuration's traces; files are named from `folder` on."""
    parts = [
        _of_config(config, sorted(ranks, key=lambda f: (f.rank, str(f.path))), expected)
        for config, ranks in zip(configs, read, strict=True)
    ]
    return _relative(_tables([*parts, *_never_seen(configs, expected)]), folder)


def _relative(tables: SweepTables, folder: Path) -> SweepTables:
    """Name files from `folder` on, so that the same recording gives the same tables wherever it lies."""

    before = re.compile(
        rf"(^|(?<=\()){re.escape(str(folder))}/"
    )  # at the start, or in the brackets of an error

    def from_folder(text: object) -> object:
        return before.sub("", text) if isinstance(text, str) else text

    timeline = tables.timeline.assign(file=tables.timeline["file"].map(from_folder))
    problems = tables.problems.assign(
        **{name: tables.problems[name].map(from_folder) for name in ("file", "what")}
    )
    return replace(tables, timeline=timeline, problems=problems)


@dataclass(frozen=True)
class RankFigures:
    """What one trace yields, small enough to cross processes. error: why it could not be read."""

    path: Path
    rank: int
    world_size: int | None = None
    timeline: dict[str, Any] | None = None
    collectives: tuple[dict[str, Any], ...] = ()
    gemm: tuple[dict[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    error: tuple[str, str] | None = None


def read_rank(found: TraceFile) -> RankFigures:
    """Figures of one trace; raises LabError if it cannot be read."""
    return figures_of(found, read_kineto(found.path))


def _figures(found: TraceFile, result: RankFigures | LabError) -> RankFigures:
    """A trace that could not be read leaves behind its rank, as its path tells it, and the reason."""
    if isinstance(result, RankFigures):
        return result
    where = f" ({result.where})" if result.where else ""
    named = -1 if found.rank is None else found.rank
    return RankFigures(found.path, named, error=(f"{result.what}{where}", result.fix or ""))


def figures_of(found: TraceFile, trace: Trace) -> RankFigures:
    """Figures of a trace that has been read."""
    named = -1 if found.rank is None else found.rank
    problems = list(trace.problems)
    rank = trace.meta.rank if trace.meta.rank is not None else named
    if named >= 0 and rank != named:
        problems.append(f"the folder says rank {named}, the trace says {rank}: the trace counts")
    return RankFigures(
        path=found.path,
        rank=rank,
        world_size=trace.meta.world_size,
        timeline=_timeline_row(trace),
        collectives=tuple(_collective_rows(trace)),
        gemm=tuple(_gemm_rows(trace)),
        problems=tuple(problems),
    )


def channels_verdict(requested: int, effective: int, log_channels: int) -> str:
    """Was the channel count honoured? Channels are the blocks of a collective kernel's grid.

    clamped: NCCL's log or the grid shows fewer than asked (small messages use fewer); ignored: more.
    unknown: nothing was asked, or the trace has no grid. log_channels is -1 without a log.
    """
    if requested <= 0:
        return "unknown"
    if 0 < log_channels < requested:
        return "clamped"
    if effective <= 0:
        return "unknown"
    if effective == requested:
        return "honoured"
    return "clamped" if effective < requested else "ignored"


def threads_verdict(requested: int, effective: int) -> str:
    """Was the block size honoured? NCCL adds a warp; 640 is the LL128 protocol's fixed size, so ignored."""
    if requested <= 0 or effective <= 0:
        return "unknown"
    return "honoured" if effective in (requested, requested + NCCL_EXTRA_THREADS) else "ignored"


def verdict_over_sizes(verdicts: Iterable[tuple[int, str]]) -> str:
    """One sentence from (msg_bytes, verdict) pairs, such as `honoured for >= 96 MiB, ignored below`."""
    by_size: dict[int, set[str]] = {}
    for msg_bytes, verdict in verdicts:
        if verdict != "unknown":
            by_size.setdefault(msg_bytes, set()).add(verdict)
    if not by_size:
        return "unknown"
    every = sorted(set().union(*by_size.values()))
    if len(every) == 1:
        return every[0]
    sizes = sorted(by_size)
    good = [by_size[size] == {"honoured"} for size in sizes]
    first = good.index(True) if True in good else len(sizes)
    if first < len(sizes) and all(good[first:]):
        below = sorted(set().union(*(by_size[size] for size in sizes[:first])) - {"honoured"})
        return f"honoured for >= {_mib(sizes[first])}, {' or '.join(below)} below"
    return f"mixed: {', '.join(every)}; honoured for {sum(good)} of {len(sizes)} sizes"


def log_channels(logs: Iterable[Path]) -> int:
    """The channel count that most lines of NCCL's logs (INFO, INIT) report, -1 without such a line.

    Source: NVIDIA/nccl `src/init.cc`, which logs `N coll channels` once per rank and communicator.
    """
    counts: Counter[int] = Counter()
    for path in logs:
        with path.open("rb") as file:
            # Bounded reads: a log is outside input and may have no line ends.
            for line in iter(lambda f=file: f.readline(1 << 16), b""):  # type: ignore[misc]
                counts.update(int(match) for match in _LOG_CHANNELS.findall(line))
    return counts.most_common(1)[0][0] if counts else -1


def _configs(folder: Path, expected: Sequence[Mapping[str, Any]]) -> list[ConfigDir]:
    """A run whose every configuration failed has no traces to find, but it has rows to show."""
    try:
        return find_configs(folder)
    except LabError:
        if expected and folder.is_dir():
            return []
        raise


def _timeline_row(trace: Trace) -> dict[str, Any]:
    on_gpu = views.device_of(trace) == "gpu"
    steps = views.steps_at(trace, trace.ops.ts_ns)
    return {
        **views.gpu_timeline(trace),
        "steps": len(np.unique(steps[steps >= 0])),
        "device": "gpu" if on_gpu else "cpu",
        "kernels": len(trace.kernels),
        "unlinked_kernels": int((views.link_ops(trace) < 0).sum()) if on_gpu else 0,
    }


def _collective_rows(trace: Trace) -> list[dict[str, Any]]:
    found = pd.DataFrame(views.collective_instances(trace).as_dict())
    names = ["collective", "in_nelems", "dtype", "msg_bytes", "grid_x", "block_x"]
    counted = found.groupby(names, sort=True).size().reset_index(name="count")
    counted = counted.rename(columns={"grid_x": "effective_channels", "block_x": "effective_threads"})
    counted["collective"] = counted["collective"].replace("", "(no metadata)")
    rows: list[dict[str, Any]] = counted.to_dict("records")
    return rows


def _gemm_rows(trace: Trace) -> list[dict[str, Any]]:
    found = pd.DataFrame(views.gemm_instances(trace).as_dict())
    rows = []
    names = [*GEMM_KEY, "strides"]
    for key, group in found.groupby(names, sort=True):
        dur_us = group["dur_ns"].to_numpy() / 1000
        shape = dict(zip(names, key, strict=True))
        rows.append({**shape, **_spread(dur_us), "tflops_median": _tflops(shape, robust.median(dur_us))})
    return rows


def _spread(dur_us: np.ndarray) -> dict[str, float]:
    return {
        "n": len(dur_us),
        "mean_us": float(dur_us.mean()),
        "median_us": robust.median(dur_us),
        "mad_us": robust.mad(dur_us),
        "cv": robust.cv(dur_us),
        "min_us": float(dur_us.min()),
        "p95_us": robust.percentile(dur_us, 95),
        "max_us": float(dur_us.max()),
        "sum_us": float(dur_us.sum()),
    }


def _tflops(shape: Mapping[str, Any], dur_us: float) -> float:
    """2 B M N K floating point operations, and B M N more for a bias; NaN where a size is unknown."""
    b, m, n, k = (shape[name] for name in ("B", "M", "N", "K"))
    if min(b, m, n, k) < 0 or dur_us <= 0:
        return float("nan")
    return float(b * m * n * (2 * k + bool(shape["bias"])) / dur_us / 1e6)


def _of_config(
    config: ConfigDir, ranks: list[RankFigures], expected: Sequence[Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    key = {"threads": config.threads or 0, "channel": config.channels or 0, "repeat": config.repeat}
    from_log, log_problem = _from_log(config)
    effective = [
        _effective_row({**key, "rank": one.rank}, row, from_log) for one in ranks for row in one.collectives
    ]
    good = [one for one in ranks if one.timeline]
    summary = {
        **key,
        **_status(config, ranks, _find(expected, key)),
        **_medians(good),
        "channels_verdict": _over_sizes(effective, "channels_verdict"),
        "threads_verdict": _over_sizes(effective, "threads_verdict"),
        "log_channels": from_log,
    }
    return {
        "timeline": [{**key, "rank": o.rank, **(o.timeline or {}), "file": str(o.path)} for o in good],
        "effective": effective,
        "gemm": [{**key, "rank": one.rank, **row} for one in ranks for row in one.gemm],
        "configs": [summary],
        "problems": [*log_problem, *_problem_rows(config, ranks, key)],
    }


def _from_log(config: ConfigDir) -> tuple[int, list[dict[str, Any]]]:
    try:
        return log_channels(config.nccl_logs), []
    except OSError as error:
        row: dict[str, Any] = {"threads": config.threads or 0, "channel": config.channels or 0}
        row["repeat"] = config.repeat
        row |= {"rank": -1, "file": str(error.filename), "what": f"the NCCL log cannot be read: {error}"}
        return -1, [row | {"fix": "allow reading it; until then channels are judged by the grid alone"}]


def _effective_row(key: dict[str, Any], row: Mapping[str, Any], from_log: int) -> dict[str, Any]:
    channels, threads = row["effective_channels"], row["effective_threads"]
    return {
        **key,
        **row,
        "requested_channels": key["channel"],
        "requested_threads": key["threads"],
        "log_channels": from_log,
        "channels_verdict": channels_verdict(key["channel"], channels, from_log),
        "threads_verdict": threads_verdict(key["threads"], threads),
    }


def _over_sizes(effective: list[dict[str, Any]], column: str) -> str:
    return verdict_over_sizes((row["msg_bytes"], row[column]) for row in effective)


def _status(config: ConfigDir, ranks: list[RankFigures], told: Mapping[str, Any] | None) -> dict[str, Any]:
    good = {one.rank for one in ranks if one.timeline}
    num_expected = max([one.world_size or 0 for one in ranks] + [max(good, default=-1) + 1])
    missing = sorted(set(range(num_expected)) - good)
    status, reason = "ok", ""
    if not config.traces:
        status, reason = "missing", "no traces in its folder"
    elif not good:
        status, reason = "broken", f"none of {len(ranks)} traces can be read"
    elif missing:
        status, reason = "incomplete", f"{len(missing)} of {num_expected} ranks have no readable trace"
    if told and told.get("status", "ok") != "ok":
        status, reason = "failed", _told_reason(told)
    return {
        "status": status,
        "reason": reason,
        "ranks_found": len(good),
        "ranks_expected": num_expected,
        "missing_ranks": ", ".join(map(str, missing)),
    }


def _told_reason(told: Mapping[str, Any]) -> str:
    status, reason = str(told.get("status", "")), str(told.get("reason") or "")
    if status == "failed" and reason:
        return reason
    return f"{status}: {reason}" if reason else status


def _medians(good: list[RankFigures]) -> dict[str, Any]:
    """Median over ranks of each figure; the slowest rank waits least, so it has the least communication."""
    rows = [one.timeline for one in good if one.timeline]
    figures: dict[str, Any] = {name: robust.median([row[name] for row in rows]) for name in TIMELINE_MS}
    comm = [row["total_comm_time_ms"] for row in rows]
    figures["slowest_rank"] = good[int(np.argmin(comm))].rank if len(good) > 1 and max(comm) > 0 else -1
    return figures


def _problem_rows(
    config: ConfigDir, ranks: list[RankFigures], key: Mapping[str, Any]
) -> Iterable[dict[str, Any]]:
    for note in config.notes:
        yield {**key, "rank": -1, "file": str(config.path), "what": note, "fix": ""}
    seen: Counter[int] = Counter(one.rank for one in ranks if one.timeline)
    for one in ranks:
        row = {**key, "rank": one.rank, "file": str(one.path)}
        if one.error:
            yield {**row, "what": one.error[0], "fix": one.error[1]}
        for problem in one.problems:
            yield {**row, "what": problem, "fix": ""}
        if seen[one.rank] > 1:
            what = f"{seen[one.rank]} traces say that they are rank {one.rank}"
            yield {**row, "what": what, "fix": "keep one trace for each rank"}


def _never_seen(
    configs: Sequence[ConfigDir], expected: Sequence[Mapping[str, Any]]
) -> list[dict[str, list[dict[str, Any]]]]:
    """Rows for what the manifest lists and the folder does not hold."""
    seen = {(config.threads or 0, config.channels or 0, config.repeat) for config in configs}
    parts = []
    for told in expected:
        if _key_of(told) in seen:
            continue
        is_ok = told.get("status", "ok") == "ok"
        reason = "the run says it went well, but its folder is gone" if is_ok else _told_reason(told)
        row: dict[str, Any] = dict(zip(KEY, _key_of(told), strict=True))
        row |= {"status": "missing" if is_ok else "failed", "reason": reason, "ranks_found": 0}
        row |= {"ranks_expected": 0, "missing_ranks": "", "slowest_rank": -1, "log_channels": -1}
        parts.append({"configs": [row | {"channels_verdict": "unknown", "threads_verdict": "unknown"}]})
    return parts


def _find(expected: Sequence[Mapping[str, Any]], key: Mapping[str, Any]) -> Mapping[str, Any] | None:
    wanted = tuple(key[name] for name in KEY)
    return next((row for row in expected if _key_of(row) == wanted), None)


def _key_of(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return int(row["threads"]), int(row["channel"]), int(row.get("repeat", 1))


def _tables(parts: Sequence[Mapping[str, list[dict[str, Any]]]]) -> SweepTables:
    def table(name: str, columns: list[str], order: list[str]) -> pd.DataFrame:
        frame = pd.DataFrame([row for part in parts for row in part.get(name, [])], columns=columns)
        ordered: pd.DataFrame = frame.sort_values(order, kind="stable", ignore_index=True)
        return ordered

    by_rank = [*KEY, "rank"]
    return SweepTables(
        timeline=table("timeline", TIMELINE, by_rank),
        effective=table("effective", EFFECTIVE, [*by_rank, "collective", "msg_bytes"]),
        gemm=table("gemm", GEMM, [*by_rank, *GEMM_KEY]),
        configs=table("configs", CONFIGS, KEY),
        problems=table("problems", PROBLEMS, by_rank),
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:.0f} MiB" if num_bytes >= _MIB else f"{num_bytes / 1024:.0f} KiB"
