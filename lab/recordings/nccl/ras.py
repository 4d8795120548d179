"""RAS (`ncclras -f json`): how many collectives each rank has launched; two answers show who stands still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.core.words import plural, ranks_text
from lab.recordings.nccl.evidence import Evidence, number, part, parts, text, whole

FLAGS = ("async_error", "abort_flag", "destroy_flag", "finalize_called")
Counts = dict[int, dict[str, int]]  # rank -> collective -> launches


def is_ras(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("communicators"), list)


def ras_evidence(found: Sequence[tuple[Path, Any]]) -> Evidence:
    """Who lags behind in which communicator. One answer cannot tell a hang from being behind."""
    done = Evidence("RAS")
    answers: list[tuple[float, int, Path, Any]] = []
    for path, document in found:
        if not is_ras(document):
            done.missing.append(f"{path.name}: no answer of RAS, or cut")
            continue
        answers.append((number(document.get("timestamp")), len(answers), path, document))
    answers.sort(key=lambda one: (one[0] != one[0], one[0], one[1]))
    history: dict[str, list[Counts]] = {}
    for at, (_, _, path, document) in enumerate(answers):
        _outer(done, path, document)
        for one in parts(document, "communicators"):
            name = text(one.get("hash", "?"))
            counts = {whole(rank.get("rank")): _counts(rank) for rank in parts(one, "ranks")}
            history.setdefault(name, []).append(counts)
            done.rows += [
                {"answer": at, "communicator": name, "rank": rank, **mine} for rank, mine in counts.items()
            ]
            _states(done, name, one, last=at == len(answers) - 1)
    for name, seen in history.items():
        _judge(done, name, seen)
    if not history:
        done.missing.append("RAS knows no communicator")
    return done


def _counts(rank: Mapping[str, Any]) -> dict[str, int]:
    return {text(name): whole(count) for name, count in part(rank, "collective_counts").items()}


def _outer(done: Evidence, path: Path, document: Mapping[str, Any]) -> None:
    late = whole(part(document, "ras").get("timeouts_count"), 0)
    if late > 0:
        done.missing.append(f"{path.name}: RAS timed out {plural(late, 'time')}: ranks may be missing")


def _states(done: Evidence, name: str, one: Mapping[str, Any], *, last: bool) -> None:
    """Ranks that are gone or in trouble, from the last answer."""
    if not last:
        return
    for gone in parts(one, "missing_ranks"):
        status = part(gone, "status")
        words = "considered dead" if status.get("considered_dead") else "unresponsive"
        done.sentences.append(f"communicator {name}: rank {whole(gone.get('rank'))} is missing, {words}")
    missing = whole(one.get("missing_ranks_count"), 0)
    if missing > 0:
        done.missing.append(f"communicator {name}: {plural(missing, 'rank')} did not answer")
    for rank in parts(one, "ranks"):
        status = part(rank, "status")
        bad = [flag for flag in FLAGS[:2] if whole(status.get(flag), int(bool(status.get(flag))))]
        if whole(status.get("init_state"), 0) != 0:
            bad.append("not initialised")
        if bad:
            words = ", ".join(flag.replace("_", " ") for flag in bad)
            done.sentences.append(f"communicator {name}: rank {whole(rank.get('rank'))}: {words}")


def _judge(done: Evidence, name: str, seen: Sequence[Counts]) -> None:
    """Counts that differ between ranks, and whether they move."""
    now = seen[-1]
    if not now:
        return
    kinds = sorted({kind for mine in now.values() for kind in mine})
    behind: dict[str, list[int]] = {}
    for kind in kinds:
        counts = {rank: mine.get(kind, -1) for rank, mine in now.items()}
        most = max(counts.values())
        lag = [rank for rank, count in counts.items() if count < most]
        if lag:
            behind[kind] = lag
    if not behind:
        done.sentences.append(
            f"communicator {name}: all {plural(len(now), 'rank')} launched as many collectives"
        )
        return
    moved = len(seen) > 1 and seen[0] != now
    for kind, lag in behind.items():
        counts = {rank: mine.get(kind, -1) for rank, mine in now.items()}
        least = min(counts.values())
        last = sorted(rank for rank in lag if counts[rank] == least)
        who, gap = ranks_text(last), max(counts.values()) - least
        what = f"communicator {name}: {who} launched {plural(gap, kind)} fewer than the others"
        if len(seen) < 2:
            done.missing.append(f"{what}; one answer cannot tell a hang from being behind: ask RAS again")
        elif moved:
            done.sentences.append(f"{what}, and counts move: behind, not hanging")
        else:
            done.late_ranks += [(rank, float("nan")) for rank in last]
            done.sentences.append(
                f"{what}, and nothing moved between {len(seen)} answers: a hang, {who} is awaited"
            )
