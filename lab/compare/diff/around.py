"""What differs around two recordings: GPUs, versions, and what the runs that hold them say of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from lab.compare.side import Side
from lab.core.manifest import load as load_manifest
from lab.core.run import MANIFEST
from lab.errors import LabError

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
    differing = []
    readers = {"recording": _of_recording, "manifest": _of_run, "environment": _of_environment}
    for source, read in readers.items():
        of_a, of_b = read(a), read(b)
        for name in {**of_a, **of_b}:
            a_text, b_text = of_a.get(name, ""), of_b.get(name, "")
            if a_text != b_text:
                differing.append(Differs(name=name, a=a_text, b=b_text, source=source))
    return differing


def unknown(a: Side, b: Side) -> list[str]:
    """Which sides do not say how they were made."""
    names = " and ".join(name for name, side in (("A", a), ("B", b)) if not _of_run(side))
    reason = "no readable manifest of a lab run: clocks, power, environment and flags are not compared"
    return [f"{names}: {reason}"] if names else []


def _of_recording(side: Side) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name in _META:
        values: dict[str, None] = {}
        for work in side.ranks.values():
            value = getattr(work.trace.meta, name)
            is_known = value is not None
            parts = filter(None, dict.fromkeys(value)) if isinstance(value, tuple) else [value][:is_known]
            values[", ".join(map(str, parts))] = None
        texts[name.replace("_", " ")] = ", ".join(filter(None, values))
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
                try:
                    return dict(_flat(msgspec.json.decode(path.read_bytes())))
                except msgspec.DecodeError:
                    return {}
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
