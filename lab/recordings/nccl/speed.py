"""nccl-tests: how fast a collective of each size is on this machine, alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.core.words import plural
from lab.recordings.communication import kind_in
from lab.recordings.nccl.evidence import Evidence, number, part, parts, text, whole

KNOWN_VERSION = 3
_PROGRAM = re.compile(r"([a-z_]{4,40})_perf")
_KEPT = re.compile(r"^(NCCL|RCCL|HSA)_")
PLACES = ("out_of_place", "in_place")


def is_speed(document: Any) -> bool:
    return isinstance(document, dict) and "results" in document and "nccl_version" in document


def speed_evidence(found: Sequence[tuple[Path, Any]]) -> Evidence:
    """One row per size and place; sizes whose results were wrong are said and count for nothing."""
    done = Evidence("nccl-tests")
    for path, document in found:
        if isinstance(document, dict) and document.get("cut"):
            done.missing.append(f"{path.name}: the file is cut")
        elif not is_speed(document):
            done.missing.append(f"{path.name}: no results of nccl-tests")
        else:
            _read(done, path, document)
    return done


def _read(done: Evidence, path: Path, document: dict[str, Any]) -> None:
    collective = _collective(document)
    ranks = _ranks(done, path, document)
    version = whole(document.get("version"))
    if version != KNOWN_VERSION:
        done.missing.append(f"{path.name}: JSON version {version} is not {KNOWN_VERSION}, read as if it were")
    if not collective:
        done.missing.append(f"{path.name}: its arguments name no program of nccl-tests")
    first = len(done.rows)
    listed = document["results"] if isinstance(document["results"], list) else []
    if odd := sum(not isinstance(one, dict) for one in listed):
        done.missing.append(f"{path.name}: {plural(odd, 'entry')} of its results are none")
    for result in parts(document, "results"):
        rows = [row for place in PLACES if (row := _row(result, place, collective, ranks)) is not None]
        done.rows += [{**row, "file": path.name} for row in rows]
        # Collectives of a model are out of place as a rule; in place stands for them where it is alone.
        for row in [one for one in rows if _counts(one) and ranks > 0][:1]:
            key = kind_in(collective) or collective, row["bytes"], ranks
            done.speeds[key] = min(row["time_us"], done.speeds.get(key, row["time_us"]))
    mine = done.rows[first:]
    if not mine:
        done.missing.append(f"{path.name}: it has no result")
        return
    done.sentences.append(_summary(path, document, collective, ranks, mine))
    _raise_doubts(done, path, mine)
    if part(document, "out_of_bounds").get("okay") is False:
        done.missing.append(f"{path.name}: nccl-tests says that results are out of bounds")
    if document.get("errors"):
        done.missing.append(f"{path.name}: nccl-tests reports errors")


def _counts(row: dict[str, Any]) -> bool:
    """Whether this is the time of a transfer whose result was not wrong."""
    known = row["time_us"] > 0 and row["bytes"] > 0
    return bool(known and row["wrong"] <= 0 and row["timed_on"] == "gpu")


def _ranks(done: Evidence, path: Path, document: dict[str, Any]) -> int:
    """Over how many ranks a collective went; 0 if unknown. Groups of ranks run theirs apart."""
    groups = Counter(str(device.get("group", 0)) for device in parts(document, "devices"))
    if not groups:
        done.missing.append(f"{path.name}: it lists no devices, so how many ranks took part is not known")
    elif len(set(groups.values())) > 1:
        done.missing.append(f"{path.name}: its groups have different numbers of ranks: compared with nothing")
    return next(iter(groups.values())) if len(set(groups.values())) == 1 else 0


def _raise_doubts(done: Evidence, path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """What of the results is wrong, was not checked, or is no time of a transfer."""
    wrong = sum(row["wrong"] > 0 for row in rows)
    if wrong:
        done.sentences.append(
            f"{path.name}: {plural(wrong, 'result')} wrong: do not trust this fabric's data"
        )
        done.missing.append(f"{path.name}: {plural(wrong, 'result')} wrong, left out")
    if unchecked := sum(row["wrong"] < 0 for row in rows):
        done.sentences.append(
            f"{path.name}: {plural(unchecked, 'result')} not validated: whether data was right is not known"
        )
    if on_host := sum(row["timed_on"] == "cpu" for row in rows):
        done.missing.append(
            f"{path.name}: {plural(on_host, 'result')} timed on the CPU, which is no transfer: left out"
        )
    if timeless := sum(not row["time_us"] > 0 for row in rows):
        done.missing.append(f"{path.name}: {plural(timeless, 'result')} without a time: left out")
    if sizeless := sum(not row["bytes"] >= 0 for row in rows):
        done.missing.append(f"{path.name}: {plural(sizeless, 'result')} without a size: left out")


def _collective(document: dict[str, Any]) -> str:
    """all_reduce from `./build/all_reduce_perf -b 8`."""
    args = document.get("args", "")
    words = " ".join(text(one) for one in args) if isinstance(args, list) else text(args)
    match = _PROGRAM.search(words)
    return match[1].strip("_") if match else ""


def _row(result: dict[str, Any], place: str, collective: str, ranks: int) -> dict[str, Any] | None:
    values = part(result, place)
    if not values:
        return None
    each = part(result, f"{place}_per_iter")
    return {
        "collective": collective,
        "bytes": whole(result.get("size")),
        "ranks": ranks,
        "dtype": text(result.get("type", "")),
        "redop": text(result.get("redop", "")),
        "place": place,
        "time_us": number(values.get("time", values.get("cpu_time"))),
        "alg_bw_gb_s": number(values.get("alg_bw")),
        "bus_bw_gb_s": number(values.get("bus_bw")),
        "wrong": _wrong(values.get("nwrong")),
        "timed_on": "gpu" if "time" in values else "cpu",
        "p50_us": number(each.get("p50_us")),
        "p95_us": number(each.get("p95_us")),
        "cv_percent": number(each.get("cv_pct")),
    }


def _wrong(value: Any) -> int:
    """How many elements were wrong; -1 where that was not checked. What is no number of them is no 0."""
    if value is None or str(value).strip().lower() in ("", "-", "n/a"):
        return -1
    return 0 if number(value) == 0 else max(whole(value), 1)


def _summary(
    path: Path, document: dict[str, Any], collective: str, ranks: int, rows: Sequence[dict[str, Any]]
) -> str:
    right = [row for row in rows if row["wrong"] <= 0]
    known = [row["bus_bw_gb_s"] for row in right if row["bus_bw_gb_s"] == row["bus_bw_gb_s"]]
    sizes = [row["bytes"] for row in rows if row["bytes"] >= 0] or [0]
    best = f", at best {max(known):.1f} GB/s (bus)" if known else ""
    env = document.get("env")
    names = sorted(name for name in env if _KEPT.match(str(name))) if isinstance(env, dict) else []
    given = (
        ", ".join(f"{text(name)}={text(env[name])}" for name in names[:6]) if isinstance(env, dict) else ""
    )
    return (
        f"{path.name}: {collective or 'an unknown collective'} over {plural(ranks, 'rank')}, "
        f"{plural(len(rows), 'result')} from {min(sizes)} to "
        f"{max(sizes)} bytes{best}; NCCL {text(document.get('nccl_version', '?'))}"
        f"{'; ' + given if given else ''}"
    )
