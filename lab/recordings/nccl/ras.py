"""RAS (`ncclras -f json`): how many collectives each rank has launched; two answers show who stands still."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from lab.core.words import plural, ranks_text
from lab.recordings.nccl.evidence import Document, Evidence, integer, number, part, parts, text

FLAGS = ("async_error", "abort_flag")
Counts = dict[int, dict[str, int]]  # rank -> collective -> launches


def is_ras(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("communicators"), list)


def ras_evidence(documents: Sequence[Document]) -> Evidence:
    """Who lags behind in which communicator. One answer cannot tell a hang from being behind."""
    evidence = Evidence("RAS")
    answers = _answers(documents, evidence.missing)
    history: dict[str, list[Counts]] = {}
    for index, (name, answer) in enumerate(answers):
        timeouts = integer(part(answer, "ras").get("timeouts_count"), 0)
        if timeouts > 0:
            evidence.missing.append(f"{name}: RAS timed out {plural(timeouts, 'time')}: ranks may be missing")
        communicators: dict[str, dict[str, Any]] = {}
        for part_of_answer in parts(answer, "communicators"):
            hashes = [text(part_of_answer[k]) for k in ("hash", "secondary_hash") if k in part_of_answer]
            communicator = f"communicator {' '.join(hashes) or '?'}"
            if communicators.setdefault(communicator, part_of_answer) is not part_of_answer:
                evidence.missing.append(f"{name}: {communicator} is there twice: the first counts")
        for communicator, state in communicators.items():
            counts = _counts_by_rank(state, f"{name}: {communicator}", evidence.missing)
            history.setdefault(communicator, []).append(counts)
            evidence.rows += [
                {"answer": index, "communicator": communicator.removeprefix("communicator "), "rank": rank}
                | of_rank
                for rank, of_rank in counts.items()
            ]
            if index == len(answers) - 1:
                _tell_trouble(evidence, communicator, state)
    for communicator, counts_by_answer in history.items():
        _compare(evidence, communicator, counts_by_answer)
    if not history:
        evidence.missing.append("RAS knows no communicator")
    return evidence


def _answers(documents: Sequence[Document], missing: list[str]) -> list[tuple[str, Any]]:
    """(name of the file, answer) by time, each moment once."""
    answers: list[tuple[float, str, Any]] = []
    for path, document in documents:
        if not is_ras(document):
            missing.append(f"{path.name}: no answer of RAS, or cut")
            continue
        time_s = _time_s(document.get("timestamp"))
        if any(document == answer or time_s == other_s for other_s, _, answer in answers):
            missing.append(f"{path.name}: an answer of the same moment as another: it counts once")
            continue
        answers.append((time_s, path.name, document))
    if len(answers) > 1 and any(math.isnan(time_s) for time_s, *_ in answers):
        missing.append("answers without a time that can be read: taken in the order given")
    else:
        answers.sort(key=lambda answer: answer[0])
    return [(name, document) for _, name, document in answers]


def _time_s(value: Any) -> float:
    """Seconds; NaN for what is neither a number nor a date."""
    seconds = number(value)
    if not math.isnan(seconds) or not isinstance(value, str):
        return seconds
    for form in ("%a %b %d %H:%M:%S %Y", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S"):
        with contextlib.suppress(ValueError, OverflowError):
            date = datetime.strptime(value.split(".")[0].removesuffix("Z").strip(), form)
            return date.replace(tzinfo=timezone.utc).timestamp()
    return math.nan


def _counts_by_rank(state: Mapping[str, Any], label: str, missing: list[str]) -> Counts:
    """The counts of every rank that has a number and counts; how many others there are is in `missing`."""
    counts: Counts = {}
    ranks = parts(state, "ranks")
    for row in ranks:
        of_rank = {text(kind): integer(num) for kind, num in part(row, "collective_counts").items()}
        rank = integer(row.get("rank"))
        if rank >= 0 and of_rank and min(of_rank.values()) >= 0:
            counts.setdefault(rank, of_rank)
    if lost := len(ranks) - len(counts):
        missing.append(f"{label}: {plural(lost, 'rank')} without a number of its own, or without counts")
    if (unlisted := integer(state.get("size"), 0) - len(ranks) - _num_missing(state)) > 0:
        missing.append(f"{label}: {unlisted} of its ranks are not listed")
    return counts


def _num_missing(state: Mapping[str, Any]) -> int:
    return max(len(parts(state, "missing_ranks")), integer(state.get("missing_ranks_count"), 0))


def _tell_trouble(evidence: Evidence, communicator: str, state: Mapping[str, Any]) -> None:
    """Name the ranks that are gone or in trouble."""
    for row in parts(state, "missing_ranks"):
        condition = "considered dead" if part(row, "status").get("considered_dead") else "unresponsive"
        evidence.sentences.append(f"{communicator}: rank {integer(row.get('rank'))} is missing, {condition}")
    if (num_missing := _num_missing(state)) > 0:
        evidence.missing.append(f"{communicator}: {plural(num_missing, 'rank')} did not answer")
    for row in parts(state, "ranks"):
        status = part(row, "status")
        bad = [
            flag.replace("_", " ") for flag in FLAGS if integer(status.get(flag), int(bool(status.get(flag))))
        ]
        if integer(status.get("init_state"), 0) != 0:
            bad.append("not initialised")
        if bad:
            evidence.sentences.append(f"{communicator}: rank {integer(row.get('rank'))}: {', '.join(bad)}")


def _compare(evidence: Evidence, communicator: str, history: Sequence[Counts]) -> None:
    """Name the ranks whose last counts lag behind, and whether they move."""
    oldest, newest = history[0], history[-1]
    is_behind = False
    for kind in sorted({kind for of_rank in newest.values() for kind in of_rank}):
        counts = {rank: of_rank.get(kind, 0) for rank, of_rank in newest.items()}
        gap = max(counts.values()) - min(counts.values())
        if not gap:
            continue
        is_behind = True
        lagging = sorted(rank for rank, count in counts.items() if count == min(counts.values()))
        ranks = ranks_text(lagging)
        text_of_gap = f"{communicator}: {ranks} launched {plural(gap, kind)} fewer than the others"
        if len(history) < 2:
            evidence.missing.append(
                f"{text_of_gap}; one answer cannot tell a hang from being behind: ask RAS again"
            )
        elif any(oldest.get(rank) != newest[rank] for rank in lagging):
            evidence.sentences.append(f"{text_of_gap}, and its own counts move: behind, not hanging")
        else:
            evidence.late_ranks += [(rank, math.nan) for rank in lagging]
            others_move = any(oldest.get(rank) != of_rank for rank, of_rank in newest.items())
            state = (
                "stands still while others move: they run into a hang"
                if others_move
                else f"nothing moved between {len(history)} answers: a hang"
            )
            evidence.sentences.append(f"{text_of_gap}, and {state}, {ranks} is awaited")
    if newest and not is_behind:
        _tell_equal(evidence, communicator, history)


def _tell_equal(evidence: Evidence, communicator: str, history: Sequence[Counts]) -> None:
    """All ranks launched as much: no rank is awaited by number, which is no proof that work goes on."""
    newest = history[-1]
    equal = f"{communicator}: all {plural(len(newest), 'rank')} launched as many collectives"
    if not any(sum(of_rank.values()) for of_rank in newest.values()):
        evidence.sentences.append(f"{equal}, namely none; sends and receives are not counted")
    elif len(history) > 1 and history[0] == newest:
        evidence.missing.append(
            f"{equal}, and none more between {len(history)} answers: "
            "idle, or all wait in one (lab ranks hang)"
        )
    else:
        evidence.sentences.append(equal)
