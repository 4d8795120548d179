"""RAS (`ncclras -f json`): how many collectives each rank has launched; two answers show who stands still."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
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
    seen: list[Any] = []
    for path, document in found:
        if not is_ras(document):
            done.missing.append(f"{path.name}: no answer of RAS, or cut")
            continue
        at_s = _time(document.get("timestamp"))
        if document in seen or any(at_s == other for other, *_ in answers):
            done.missing.append(f"{path.name}: an answer of the same moment as another: it counts once")
            continue
        seen.append(document)
        answers.append((at_s, len(answers), path, document))
    if len(answers) > 1 and any(math.isnan(at_s) for at_s, *_ in answers):
        done.missing.append("answers without a time that can be read: taken in the order given")
    else:
        answers.sort(key=lambda one: one[:2])
    history: dict[str, list[Counts]] = {}
    for at, (_, _, path, document) in enumerate(answers):
        _outer(done, path, document)
        here: set[str] = set()
        for one in parts(document, "communicators"):
            name = " ".join(text(one[part]) for part in ("hash", "secondary_hash") if part in one) or "?"
            if name in here:
                done.missing.append(f"{path.name}: communicator {name} is there twice: the first counts")
                continue
            here.add(name)
            counts = _of_ranks(done, path, name, one)
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


def _time(value: Any) -> float:
    """Seconds; NaN for what is neither a number nor a date."""
    found = number(value)
    if not math.isnan(found) or not isinstance(value, str):
        return found
    for form in ("%a %b %d %H:%M:%S %Y", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S"):
        with contextlib.suppress(ValueError, OverflowError):
            date = datetime.strptime(value.split(".")[0].removesuffix("Z").strip(), form)
            return date.replace(tzinfo=timezone.utc).timestamp()
    return math.nan


def _of_ranks(done: Evidence, path: Path, name: str, one: Mapping[str, Any]) -> Counts:
    """The counts of every rank that has a number and counts; the others are said."""
    where = f"{path.name}: communicator {name}"
    found: Counts = {}
    lost = 0
    for rank in parts(one, "ranks"):
        number_of, mine = whole(rank.get("rank")), _counts(rank)
        if number_of < 0 or number_of in found or not mine or min(mine.values()) < 0:
            lost += 1
        else:
            found[number_of] = mine
    if lost:
        done.missing.append(f"{where}: {plural(lost, 'rank')} without a number of its own, or without counts")
    listed = len(parts(one, "ranks")) + max(
        len(parts(one, "missing_ranks")), whole(one.get("missing_ranks_count"), 0)
    )
    if whole(one.get("size"), 0) > listed:
        done.missing.append(f"{where}: {whole(one.get('size')) - listed} of its ranks are not listed")
    return found


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
    missing = max(whole(one.get("missing_ranks_count"), 0), len(parts(one, "missing_ranks")))
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
        counts = {rank: mine.get(kind, 0) for rank, mine in now.items()}
        most = max(counts.values())
        lag = [rank for rank, count in counts.items() if count < most]
        if lag:
            behind[kind] = lag
    if not behind:
        _all_alike(done, name, seen)
        return
    for kind, lag in behind.items():
        counts = {rank: mine.get(kind, 0) for rank, mine in now.items()}
        least = min(counts.values())
        last = sorted(rank for rank in lag if counts[rank] == least)
        who, gap = ranks_text(last), max(counts.values()) - least
        what = f"communicator {name}: {who} launched {plural(gap, kind)} fewer than the others"
        if len(seen) < 2:
            done.missing.append(f"{what}; one answer cannot tell a hang from being behind: ask RAS again")
        elif any(seen[0].get(rank) != now[rank] for rank in last):
            done.sentences.append(f"{what}, and its own counts move: behind, not hanging")
        elif any(seen[0].get(rank) != mine for rank, mine in now.items()):
            done.late_ranks += [(rank, float("nan")) for rank in last]
            done.sentences.append(
                f"{what}, and stands still while others move: they run into a hang, {who} is awaited"
            )
        else:
            done.late_ranks += [(rank, float("nan")) for rank in last]
            done.sentences.append(
                f"{what}, and nothing moved between {len(seen)} answers: a hang, {who} is awaited"
            )


def _all_alike(done: Evidence, name: str, seen: Sequence[Counts]) -> None:
    """All ranks launched as much: no rank is awaited by number, which is no proof that work goes on."""
    now = seen[-1]
    what = f"communicator {name}: all {plural(len(now), 'rank')} launched as many collectives"
    if not any(sum(mine.values()) for mine in now.values()):
        done.sentences.append(f"{what}, namely none; sends and receives are not counted")
    elif len(seen) > 1 and seen[0] == now:
        done.missing.append(
            f"{what}, and none more between {len(seen)} answers: idle, or all wait in one (lab ranks hang)"
        )
    else:
        done.sentences.append(what)
