"""How much equal processes differ on this machine: measured on BASE alone, kept, and used by the gate.

A handful of processes may agree by luck, and an interval from their own scatter is then too narrow. So BASE
runs a few times by itself (A against A) once per machine and workload; the gate's intervals rest on those
processes, too (lab.stats.gate).
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from lab.compare.check.samples import Process
from lab.compare.side import Key
from lab.core.files import state_folder, write_atomic
from lab.core.provenance import host
from lab.errors import BadDataError, MissingError
from lab.gpus.discover import discover
from lab.stats.means import student_t

PROCESSES = 8  # of BASE, after one that warms up
FILE = "floors.json"  # beside base/ and head/
DAYS = 30.0
LEVEL = 0.99  # of equal pairs, that differ by less than the floor
ALIKE = 1.5  # a median further from the kept ones than this factor is of another workload
_VERSION = 1
_MOST_BYTES = 64 << 20
_DAY_S = 86_400.0
Time = Annotated[float, msgspec.Meta(gt=0)]


class Signature(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """ns: the GPU time per step in each process."""

    op: str
    dims: str
    types: str
    kernel: str
    ns: list[Time]


class Floors(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Equal processes of one workload on one machine. times_ns: by metric, one per process; counts: per step
    in each process, by name."""

    schema_version: int = _VERSION
    machine: dict[str, str]
    workload: dict[str, str]
    measured_s: Annotated[float, msgspec.Meta(ge=0, le=1e11)]  # since 1970
    processes: int
    times_ns: dict[str, list[Time]]
    signatures: list[Signature] = []
    counts: dict[str, list[float]] = {}

    @property
    def date(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self.measured_s))


def floor_of(values: Sequence[float], n: int, m: int) -> float | None:
    """The difference of mean logs that 99 % of equal pairs of n and m processes stay below, from A/A values.

    By Student's t, because the deviation is itself an estimate; None below three values.
    """
    if len(values) < 3:
        return None
    deviation = float(np.log(np.asarray(values, dtype=float)).std(ddof=1))
    return student_t(1 - LEVEL, len(values) - 1) * deviation * math.sqrt(1 / n + 1 / m)


def by_signature(floors: Floors | None) -> dict[Key, list[float]]:
    found = floors.signatures if floors else []
    return {(one.op, one.dims, one.types, one.kernel): one.ns for one in found}


def of_processes(found: Sequence[Process], machine: Mapping[str, str], workload: Mapping[str, str]) -> Floors:
    """What these equal processes say; signatures that all of them have."""
    shared = set.intersection(*({key for key, ns in one.signatures_ns.items() if ns > 0} for one in found))
    return Floors(
        machine=dict(machine),
        workload=dict(workload),
        measured_s=time.time(),
        processes=len(found),
        times_ns={name: [one.times_ns[name] for one in found] for name in found[0].times_ns},
        signatures=[
            Signature(
                op=key[0],
                dims=key[1],
                types=key[2],
                kernel=key[3],
                ns=[one.signatures_ns[key] for one in found],
            )
            for key in sorted(shared)
        ],
        counts={
            name: [one.counts.get(name, 0.0) for one in found]
            for name in sorted({name for one in found for name in one.counts})
        },
    )


def this_machine() -> dict[str, str]:
    """What a floor depends on: host, processor, GPUs, driver."""
    here = host()
    gpus = [f"{gpu.name} {gpu.uuid} driver {gpu.driver}" for gpu in discover()]
    return {"host": str(here["name"]), "cpu": str(here["cpu"]), "gpus": "; ".join(gpus) or "none"}


def place_of(machine: Mapping[str, str], workload: Mapping[str, str]) -> Path:
    """The user's file for this machine and workload."""
    text = msgspec.json.encode([sorted(machine.items()), sorted(workload.items())])
    return state_folder() / "floors" / f"{hashlib.sha256(text).hexdigest()[:16]}.json"


def kept(path: Path, now_s: float) -> tuple[Floors | None, str]:
    """The floors in the user's file, or None and why they are to be measured again."""
    try:
        found = read(path)
    except MissingError:
        return None, "none measured here yet"
    except BadDataError as error:
        return None, f"the kept ones cannot be read ({error.problem})"
    age = (now_s - found.measured_s) / _DAY_S
    if not 0 <= age <= DAYS:
        return None, f"the kept ones are of {found.date}, and expire after {DAYS:g} days"
    return found, ""


def read(path: Path) -> Floors:
    """Raises MissingError, and BadDataError for a file that is not one of floors."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadDataError(f"floors of more than {_MOST_BYTES >> 20} MiB", location=path)
        found = msgspec.json.decode(path.read_bytes(), type=Floors)
    except OSError as error:
        raise MissingError(f"no floors here: {error.strerror}", location=path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadDataError(f"not floors: {error}", location=path, fix="remove the file") from error
    if found.schema_version != _VERSION:
        raise BadDataError("floors of another version of lab", location=path, fix="remove the file")
    return found


def save(floors: Floors, path: Path) -> None:
    write_atomic(path, msgspec.json.encode(floors) + b"\n")


def unlike(floors: Floors, base: Sequence[Process]) -> str:
    """Why these floors are of other work than these processes; "" if they may be of the same.

    Medians further apart than ALIKE, and than the floor's own processes explain.
    """
    for name, values in floors.times_ns.items():
        if any(name not in one.times_ns for one in base):
            return f"they have no processes with {name}"
        if not values:
            return f"they have no {name}"
        now, then = float(np.median([one.times_ns[name] for one in base])), float(np.median(values))
        limit = max(math.log(ALIKE), floor_of(values, len(base), len(values)) or 0.0)
        if not abs(math.log(now / then)) <= limit:
            return f"{name} of BASE was {then / 1e6:.3g} ms then, and is {now / 1e6:.3g} ms now"
    return ""


def words(floors: Floors) -> str:
    """Where the floors come from, for a sentence."""
    gpus = floors.machine.get("gpus", "none")
    where = floors.machine.get("host", "another machine") + (f", {gpus}" if gpus != "none" else "")
    return f"{floors.processes} processes of BASE against each other on {floors.date} ({where})"


def as_builtins(floors: Floors) -> dict[str, Any]:
    """What a verdict says of them, without the values."""
    return {
        "machine": floors.machine,
        "workload": floors.workload,
        "measured": floors.date,
        "processes": floors.processes,
        "expires_days": DAYS,
    }
