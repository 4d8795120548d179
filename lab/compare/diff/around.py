"""What stands beside the findings: what else differs around two recordings (GPUs, versions, what the runs
that hold them say of themselves), and what limits the comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from lab.compare.diff.judge import BELOW
from lab.compare.diff.split import MOST, Row
from lab.compare.side import Side, Work, steps_overlap
from lab.compare.units import Units
from lab.core.files import read_or_none
from lab.core.manifest import load as load_manifest
from lab.core.run import MANIFEST
from lab.core.words import first_few, plural
from lab.errors import LabError
from lab.perfmodel.communication import communication
from lab.recordings.integrity.words import sentences

_META = (
    "vendor",
    "devices",
    "num_sms",
    "world_size",
    "backend",
    "torch_version",
    "cuda_version",
    "hip_version",
    "nccl_version",
    "host",
)
_ENVIRONMENT = "environment.json"
_MOST_BYTES = 4 << 20
_MANIFEST = ("room", "engine", "image", "gpus", "env", "versions", "config", "host", "lab")
# Differ between any two runs, and explain nothing.
_NOISE = ("uuid", "sha256", "checked_utc", "timestamp", "smi_after", "pid", "index", "digests", ".id")
ODD = 5  # sentences about what was odd in a recording
_MOST_ABOVE = 4  # folders above a recording that may be its run's


class Differs(msgspec.Struct, kw_only=True):
    """One thing that differs; "" where it is not recorded. source: recording, manifest or environment."""

    name: str = msgspec.field(name="what")
    a: str
    b: str
    source: str

    @property
    def change(self) -> str:
        return f"{self.a or 'not said'} -> {self.b or 'not said'}"


def differences(a: Side, b: Side) -> list[Differs]:
    """Sorted by source. Whatever neither side says is not here: it was not compared."""
    readers = {"recording": _of_recording, "manifest": _of_run, "environment": _of_environment}
    sides = {source: (read(a), read(b)) for source, read in readers.items()}
    return [
        Differs(name=name, a=of_a.get(name, ""), b=of_b.get(name, ""), source=source)
        for source, (of_a, of_b) in sides.items()
        for name in {**of_a, **of_b}
        if of_a.get(name, "") != of_b.get(name, "")
    ]


def unknown(a: Side, b: Side) -> list[str]:
    """Which sides do not say how they were made."""
    names = " and ".join(name for name, side in (("A", a), ("B", b)) if not _of_run(side))
    reason = "no readable manifest of a lab run: clocks, power, environment and flags are not compared"
    return [f"{names}: {reason}"] if names else []


def _of_recording(side: Side) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name in _META:
        values = [getattr(work.trace.meta, name) for work in side.ranks.values()]
        parts = [dict.fromkeys(value if isinstance(value, tuple) else (value,)) for value in values]
        of_ranks = [", ".join(str(part) for part in of_rank if part not in (None, "")) for of_rank in parts]
        texts[name.replace("_", " ")] = ", ".join(filter(None, dict.fromkeys(of_ranks)))
    texts["ranks"] = ", ".join(map(str, sorted({rank for _, rank in side.ranks})))
    return {name: text for name, text in texts.items() if text}


def _of_run(side: Side) -> dict[str, str]:
    """The manifest of the run folder around the side's recordings."""
    start = side.path.absolute()
    for folder in [start, *start.parents][: _MOST_ABOVE + 1]:
        if (folder / MANIFEST).is_file():
            try:
                manifest = msgspec.to_builtins(load_manifest(folder / MANIFEST))
            except LabError:  # of another version, or damaged: it says nothing then
                return {}
            return dict(_flat({name: manifest[name] for name in _MANIFEST}))
    return {}


def _of_environment(side: Side) -> dict[str, str]:
    """Read the environment beside the first recording that has one: clocks, power, variables that count."""
    for work in side.ranks.values():
        for folder in (work.trace.source.parent, *work.trace.source.parents[1:3]):
            path = folder / _ENVIRONMENT
            if path.is_file() and path.stat().st_size <= _MOST_BYTES:
                return dict(_flat(read_or_none(path, dict)))
    return {}


def _flat(value: Any, above: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{above}.{name}" if above else str(name))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value[:64]):
            yield from _flat(inner, f"{above}[{index}]")
    elif value is not None and not any(word in above for word in _NOISE):
        yield above, str(value)[:500]


def notes(a: Units, b: Units) -> list[str]:
    """Notes on the limits of the recordings, their steps, and the calls."""
    sides = (("A", a), ("B", b))
    texts = [f"{side}: {text}" for side, units in sides for text in _of_side(units)]
    texts += [f"{side} records no API calls: they are not compared" for side, of in sides if not of.calls]
    if a.work.trace.meta.vendor != b.work.trace.meta.vendor:
        texts.append("GPUs of two vendors: API calls are listed (-o, --json), none is named")
    elif a.work.plain and a.calls and b.calls and a.calls.keys() != b.calls.keys():
        texts.append(
            "recorded by two tools: of API functions that only one side has, waits alone are named; all are "
            "listed (-o, --json)"
        )
    if (longest := max(len(a.sequence), len(b.sequence))) > MOST:
        texts.append(
            f"a step has {longest:,} GPU operations, more than {MOST:,}: ops that replaced others are not "
            "joined, and timelines are left out"
        )
    if not a.is_step:
        return [*texts, without_steps(a.work, b.work)]
    single = [side for side, units in sides if units.count < 2]
    if single:
        texts.append(f"{' and '.join(single)}: one step only, so how much steps vary is not known")
    return texts


def _of_side(units: Units) -> Iterator[str]:
    work = units.work
    unlinked = int((~work.has_op).sum())
    if unlinked and "op" not in work.drop:
        total = plural(len(work.dur_ns), "GPU operation")
        yield f"{unlinked} of {total} have no known op and are aligned by kernel name"
    yield from sentences(work.trace.lacks)
    if work.trace.problems:
        yield first_few(work.trace.problems, ODD, between="; ")
    if (gpus := len(np.unique(work.ops.device))) > 1:
        yield f"one process on {gpus} GPUs: idle is when none of them works, overlap is across them"
    marked = plural(len(work.steps_ns), "step")
    if units.empty:
        means = f"means are over the other {int(units.count)}"
        yield f"{units.empty} of {marked} launched no GPU operation and are in no mean: {means}"
    if units.cut:
        yield f"{units.cut} of {marked} lost GPU operations and are in no mean"
    if units.outside:
        yield f"{plural(units.outside, 'GPU operation')} launched outside every step, left out"


def without_steps(a: Work, b: Work) -> str:
    sides = (("A", a), ("B", b))
    marked = [side for side, work in sides if len(work.steps_ns)]
    reason = f"only {marked[0]} marks steps" if marked else "no steps are marked"
    if overlap := [side for side, work in sides if steps_overlap(work)]:
        verb = "marks" if len(overlap) == 1 else "mark"
        reason = f"{' and '.join(overlap)} {verb} steps that overlap, as several processes or threads do: "
        reason += "none is a unit; the longest kernel's calls are"
    return f"{reason}: counts that the edges of a recorded window explain are not named"


def of_collectives(rows: Sequence[Row]) -> list[str]:
    """A kernel of a collective is as long as its ranks wait for each other."""
    named = [row for row in rows if row.confidence != BELOW and row.kind == "same_kernel_duration"]
    if not any(row.kernel_a and communication(row.kernel_a) is not None for row in named):
        return []
    return ["a collective's kernel also waits for the last rank: `lab ranks` tells waiting from transfer"]
