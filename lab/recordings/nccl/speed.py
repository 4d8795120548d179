"""nccl-tests: how fast a collective of each size is on this machine, alone."""

from __future__ import annotations

import re
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
    ranks = len(parts(document, "devices"))
    version = whole(document.get("version"))
    if version != KNOWN_VERSION:
        done.missing.append(f"{path.name}: JSON version {version} is not {KNOWN_VERSION}, read as if it were")
    if not collective:
        done.missing.append(f"{path.name}: its arguments name no program of nccl-tests")
    first = len(done.rows)
    wrong = 0
    for result in parts(document, "results"):
        for place in PLACES:
            row = _row(result, place, collective, ranks)
            if row is None:
                continue
            wrong += row["wrong"] > 0
            done.rows.append({**row, "file": path.name})
            if row["time_us"] > 0 and row["wrong"] <= 0 and row["bytes"] > 0:
                key = kind_in(collective) or collective, row["bytes"], ranks
                done.speeds[key] = min(row["time_us"], done.speeds.get(key, row["time_us"]))
    mine = done.rows[first:]
    if not mine:
        done.missing.append(f"{path.name}: it has no result")
        return
    done.sentences.append(_summary(path, document, collective, ranks, mine))
    if wrong:
        done.sentences.append(
            f"{path.name}: {plural(wrong, 'result')} wrong: do not trust this fabric's data"
        )
        done.missing.append(f"{path.name}: {plural(wrong, 'result')} wrong, left out")
    if part(document, "out_of_bounds").get("okay") is False:
        done.missing.append(f"{path.name}: nccl-tests says that results are out of bounds")
    if document.get("errors"):
        done.missing.append(f"{path.name}: nccl-tests reports errors")


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
        "wrong": whole(values.get("nwrong")),
        "p50_us": number(each.get("p50_us")),
        "p95_us": number(each.get("p95_us")),
        "cv_percent": number(each.get("cv_pct")),
    }


def _summary(
    path: Path, document: dict[str, Any], collective: str, ranks: int, rows: Sequence[dict[str, Any]]
) -> str:
    known = [row["bus_bw_gb_s"] for row in rows if row["bus_bw_gb_s"] == row["bus_bw_gb_s"]]
    best = f", at best {max(known):.1f} GB/s (bus)" if known else ""
    env = document.get("env")
    names = sorted(name for name in env if _KEPT.match(str(name))) if isinstance(env, dict) else []
    given = (
        ", ".join(f"{text(name)}={text(env[name])}" for name in names[:6]) if isinstance(env, dict) else ""
    )
    return (
        f"{path.name}: {collective or 'an unknown collective'} over {plural(ranks, 'rank')}, "
        f"{plural(len(rows), 'result')} from {min(row['bytes'] for row in rows)} to "
        f"{max(row['bytes'] for row in rows)} bytes{best}; NCCL {text(document.get('nccl_version', '?'))}"
        f"{'; ' + given if given else ''}"
    )
