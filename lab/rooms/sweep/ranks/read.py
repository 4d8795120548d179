"""A folder of rank traces -> the work of every rank, setting by setting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lab.core.words import first_few, plural, ranks_text
from lab.errors import BadDataError, LabError
from lab.recordings.capture import Capture
from lab.recordings.gpu_state import GpuState, read_state, rows_of
from lab.recordings.integrity.words import sentences
from lab.recordings.lacks import holes
from lab.recordings.load import load_capture
from lab.recordings.pool import map_traces, raise_if_none_read
from lab.recordings.processes import rank_captures
from lab.recordings.ranks import Account, RankWork, account_of, work_of
from lab.recordings.ranks.common import WHOLE
from lab.recordings.ranks.explain import explain
from lab.recordings.ranks.explained import Explained
from lab.recordings.ranks.findings import not_joined
from lab.recordings.ranks.stragglers import MISSING
from lab.rooms.sweep.layout import ConfigDir, TraceFile, find_configs
from lab.rooms.sweep.rank import about, differences
from lab.rooms.sweep.tables import Progress, run_name

# Share of operations without a launch above which an account says little about the host.
MOST_UNLAUNCHED = 0.5


@dataclass(frozen=True)
class Read:
    """What one process gave: the rank's work, the world's size, what is odd or lost, and where it ran."""

    work: RankWork
    world_size: int | None
    problems: tuple[str, ...]
    lost: tuple[str, ...]
    about: dict[str, str] = field(default_factory=dict)
    start_ns: int | None = None  # of the session from which its times count, None where they are absolute


@dataclass(frozen=True)
class Setting:
    """One configuration with what its ranks show. missing: what its account lacks; problems: what is odd."""

    config: ConfigDir
    explained: Explained
    world_size: int
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    state: GpuState | None = None  # of the GPUs, where it was sampled beside the run

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """One row per rank whose GPU was sampled: clocks, power, temperature within the recording."""
        return gpus_of(self.account, self.state)

    @property
    def account(self) -> Account:
        return self.explained.account

    @property
    def name(self) -> str:
        return setting_name(self.config)


def setting_name(config: ConfigDir) -> str:
    window = f", {config.window}" if config.window else ""
    if config.threads is None and config.channels is None:
        return (config.run or config.path.name) + window
    return run_name(config.key) + window


def read_settings(
    folder: Path,
    *,
    ranks: re.Pattern[str] | None = None,
    workers: int = 2,
    salvage: bool = False,
    progress: Progress | None = None,
) -> list[Setting]:
    """Every setting below `folder` that has a readable rank; what the first one lacks names the others.

    Raises MissingError without any trace, BadDataError where none of them can be read.
    """
    found_configs = find_configs(folder, ranks=ranks)
    configs = [window for config in found_configs for window in config.windows()]
    traces = [trace for config in configs for trace in config.traces]
    on_done = None if progress is None else lambda num_done, total, file: progress(num_done, total, file.path)
    results = map_traces(partial(read_work, salvage=salvage), traces, workers=workers, progress=on_done)
    raise_if_none_read(results)
    collected, left_out = [], []
    in_order = iter(results)
    for config in configs:
        works, world, missing, problems = _collect([(trace, next(in_order)) for trace in config.traces])
        if works:
            collected.append((config, works, world, missing, problems))
        else:
            reason = first_few(missing, 3, between="; ") if missing else "no trace is here"
            left_out.append(f"{setting_name(config)} is left out: {reason}")
    collected[0][3].extend([*left_out, *found_configs[0].left_out()] if ranks else left_out)
    # All settings at once: dependencies of streams are learnt over all of them.
    explained = explain([account_of(works) for _, works, *_ in collected])
    return [
        Setting(
            config,
            explanation,
            world,
            [*missing, *not_told(explanation, world)],
            problems,
            read_state(config.path) if config.path.is_dir() else None,
        )
        for (config, _, world, missing, problems), explanation in zip(collected, explained, strict=True)
    ]


def not_told(explained: Explained, world: int) -> list[str]:
    """What the account of the ranks that could be read lacks, world: as many as the job has."""
    reason = not_joined(explained.account)
    loose = [f"{reason}: who waits for whom is not told"] if reason else []
    return [
        *(loose or _loose_exchanges(explained)),
        *_steps_not_shared(explained),
        *_lost_calls(explained, world),
        *_without_launches(explained),
        *_without_length(explained),
    ]


def _loose_exchanges(explained: Explained) -> list[str]:
    """Sends and receives without a partner in whole steps; cut steps have some."""
    together, lines = explained.account.together, []
    for index, work in enumerate(together.works):
        window = together.window(index, together.cut_step) if together.cut_step is not None else None
        start = work.start[together.calls[index].row[together.calls[index].loose]]
        count = int((start >= (window or together.windows[index][0, 1:])[-1 if window else 0]).sum())
        if count:
            calls = plural(count, "send or receive", "sends or receives")
            lines.append(f"rank {work.rank}: {calls} without a partner: who waits in them is not told")
    return lines


def gpus_of(account: Account, state: GpuState | None) -> list[dict[str, Any]]:
    """One row per rank whose GPU was sampled: clocks, power, temperature within the recording."""
    if state is None:
        return []
    windows = zip(account.ranks, account.together.windows, strict=True)
    return rows_of(
        state, {rank: (int(rows[:, 1].min()), int(rows[:, 2].max())) for rank, rows in windows if len(rows)}
    )


def _lost_calls(explained: Explained, world: int) -> list[str]:
    """What ranks lack of calls that others recorded in steps that all recorded: the pairing has holes there.

    A rank without any recording is said where ranks are counted, so it is left out here.
    """
    ranks, together = explained.account.ranks, explained.account.together
    if len(ranks) < 2:
        return []
    # Calls of a step that a rank did not record do not count as lost.
    shared = set.intersection(*({int(number) for number in rows[:, 0]} for rows in together.windows))
    return [
        finding.text
        for finding in explained.findings
        if finding.cause == MISSING
        and (finding.rank in ranks or finding.rank >= world)
        and (shared & set(finding.steps) or together.window_kind == WHOLE)
    ]


def read_work(file: TraceFile, *, salvage: bool) -> list[Read]:
    """The work of each process in a recording of any format, one in most.

    Raises LabError if it cannot be read or lacks events.
    """
    traces = rank_captures(load_capture(file.path, salvage=salvage))
    reads = [
        Read(
            replace(work_of(trace, file.rank), rank=file.rank)
            if file.is_named and file.rank is not None and len(traces) == 1
            else work_of(trace, file.rank),
            trace.meta.world_size,
            *_doubts(trace),
            about(trace),
            int(start) if (start := trace.info.get("session_start_ns")) else None,
        )
        for trace in traces
    ]
    if not any(len(read.work) for read in reads):
        raise BadDataError(
            "the trace is empty of events, so it cannot be read as a rank",
            location=file.path,
            fix="record this rank again, or leave its file out",
        )
    return [read for read in reads if len(read.work)]


def _doubts(trace: Capture) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is odd about a trace, and what it has lost of the axes that the account rests on."""
    lost = [lack for lack in holes(trace.lacks) if lack.axis in ("gpu", "host")]
    minor = [lack for lack in trace.lacks if lack not in lost]
    cut = ("the trace is truncated: only its readable part is accounted for",) if trace.truncated else ()
    return (*trace.problems, *sentences(minor)), (*cut, *sentences(lost))


def _collect(
    results: Sequence[tuple[TraceFile, list[Read] | LabError]],
) -> tuple[dict[int, RankWork], int, list[str], list[str]]:
    """(works by rank, world size, what is missing, problems) of one setting."""
    works: dict[int, RankWork] = {}
    missing, problems, world = [], [], 0
    abouts: dict[int, dict[str, str]] = {}
    read: list[tuple[TraceFile, Read]] = []
    for file, result in results:
        if isinstance(result, LabError):
            missing.append(f"{file.path.name}: {result.problem}")
        else:
            read += [(file, rank_read) for rank_read in result]
    starts_ns = {rank_read.start_ns for _, rank_read in read}
    if len(starts_ns) > 1 and None not in starts_ns:  # sessions that began at different times
        read = [
            (file, replace(rank_read, work=_shifted(rank_read.work, rank_read.start_ns or 0)))
            for file, rank_read in read
        ]
    # Ranks that say who they are come first, so that a trace without a rank takes no one's number.
    for file, rank_read in sorted(read, key=lambda pair: pair[1].work.rank < 0):
        rank = rank_read.work.rank
        if rank in works:
            short_path = "/".join(file.path.parts[-2:])
            missing.append(f"{short_path}: another trace says rank {rank} too; left out")
            continue
        if rank < 0:
            rank = next(number for number in range(len(works) + 1) if number not in works)
            problems.append(f"{file.path.name}: the trace names no rank; counted as rank {rank}")
        works[rank] = replace(rank_read.work, rank=rank)
        abouts[rank] = rank_read.about
        world = max(world, rank_read.world_size or 0)
        problems += [f"rank {rank}: {text}" for text in rank_read.problems]
        missing += [f"rank {rank}: {text}" for text in rank_read.lost]
    # One rank alone is a valid subject; several are a set, in which a gap is a finding.
    gone = sorted(set(range(world)) - set(works)) if len(works) > 1 else []
    if gone:
        missing.append(f"{len(works)} of {world} ranks are here; missing: {', '.join(map(str, gone))}")
    return works, world, missing, [*differences(abouts), *problems]


def _steps_not_shared(explained: Explained) -> list[str]:
    """Steps that only some ranks recorded: who was waited for in them cannot be told."""
    together = explained.account.together
    steps_of_rank = {work.rank: set(work.steps[:, 0].tolist()) for work in together.works}
    bare = [rank for rank, steps in sorted(steps_of_rank.items()) if not steps]
    if bare and len(bare) < len(steps_of_rank):
        return [f"{ranks_text(bare)} recorded no steps, so the recording is not told step by step"]
    all_steps = set().union(*steps_of_rank.values())
    lacking: dict[tuple[int, ...], list[int]] = {}
    for rank, steps in sorted(steps_of_rank.items()):
        if steps != all_steps:
            lacking.setdefault(tuple(sorted(all_steps - steps)), []).append(rank)
    return [
        f"{ranks_text(ranks)} recorded no step {first_few([str(step) for step in steps], limit=8)}, which "
        "others did: waiting in it is not told"
        for steps, ranks in lacking.items()
    ]


def _shifted(work: RankWork, shift_ns: int) -> RankWork:
    """The work with its times on the clock on which its session began at shift_ns."""
    names = ("start", "end", "blocking_calls", "calls", "host_ops")
    calls = {name: getattr(work, name) for name in ("call_begin", "call_end")}
    return replace(
        work,
        **{name: getattr(work, name) + shift_ns for name in names},
        # -1 marks an operation without a recorded launch and must stay -1.
        **{name: np.where(times < 0, times, times + shift_ns) for name, times in calls.items()},
        steps=work.steps + np.array([0, shift_ns, shift_ns]),
        collectives=work.collectives.with_columns(ts_ns=work.collectives.ts_ns + shift_ns),
    )


def _without_launches(explained: Explained) -> list[str]:
    """Ranks whose launches were not recorded, so that it cannot be told whether their hosts are late."""
    sentences = []
    for work in explained.account.together.works:
        # A host that is late makes its GPU idle: without idle time its lost launches do not matter.
        idle_ns = sum(row.parts["unexplained_ns"] for row in explained.account.rows if row.rank == work.rank)
        lost = float((work.call_begin < 0).mean())
        if lost > MOST_UNLAUNCHED and idle_ns > 0:
            sentences.append(
                f"rank {work.rank}: {100 * lost:.0f} % of its operations have no recorded launch, so "
                f"{idle_ns / 1e6:.1f} ms of idle time are unexplained: whether its host is late is not told"
            )
    return sentences


def _without_length(explained: Explained) -> list[str]:
    """Ranks some of whose collectives are 0 ns long: neither their waiting nor their transfer is known."""
    sentences = []
    for work in explained.account.together.works:
        num_lost = int((work.collectives.dur_ns == 0).sum())
        if num_lost:
            calls = plural(len(work.collectives), "collective")
            are = "is" if num_lost == 1 else "are"
            lost = "their length was lost, and with it waiting and transfer"
            sentences.append(f"rank {work.rank}: {num_lost} of {calls} {are} 0 ns long: {lost}")
    return sentences
