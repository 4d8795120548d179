"""What differs around two recordings: GPUs, versions, and what the runs that hold them say of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from lab.compare.side import Side
from lab.core.manifest import load as load_manifest
from lab.core.run import MANIFEST
from lab.errors import LabError
from lab.recordings.capture import Meta

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


def differences(a: Side, b: Side) -> list[Differs]:
    """Sorted by source. Whatever neither side says is not here: it was not compared."""
    differing = []
    for source, read in (
        ("recording", _of_recording),
        ("manifest", _of_run),
        ("environment", _of_environment),
    ):
        of_a, of_b = read(a), read(b)
        for name in {**of_a, **of_b}:
            a_text, b_text = of_a.get(name, ""), of_b.get(name, "")
            if a_text != b_text:
                differing.append(Differs(name=name, a=a_text, b=b_text, source=source))
    return differing


def unknown(a: Side, b: Side) -> list[str]:
    """Which sides do not say how they were made."""
    sides = [(name, side) for name, side in (("A", a), ("B", b)) if not _of_run(side)]
    if not sides:
        return []
    names = " and ".join(name for name, _ in sides)
    return [
        f"{names}: no readable manifest of a lab run: clocks, power, environment and flags are not compared"
    ]


def _of_recording(side: Side) -> dict[str, str]:
    metas = [work.trace.meta for work in side.ranks.values()]
    texts: dict[str, str] = {}
    for name in _META:
        values = dict.fromkeys(_meta(meta, name) for meta in metas)
        texts[name.replace("_", " ")] = ", ".join(value for value in values if value)
    texts["ranks"] = ", ".join(map(str, sorted({rank for _, rank in side.ranks})))
    return {what: text for what, text in texts.items() if text}


def _meta(meta: Meta, name: str) -> str:
    value = getattr(meta, name)
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in dict.fromkeys(value) if part)
    return "" if value is None else str(value)


def _of_run(side: Side) -> dict[str, str]:
    home = _home(side)
    if home is None:
        return {}
    try:
        manifest = msgspec.to_builtins(load_manifest(home / MANIFEST))
    except LabError:  # of another version, or damaged: it says nothing then
        return {}
    return dict(_flat({name: manifest[name] for name in _MANIFEST}))


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


def _home(side: Side) -> Path | None:
    """The run folder around the side's recordings."""
    start = side.path.absolute()
    for folder in [start, *start.parents][: _MOST_ABOVE + 1]:
        if (folder / MANIFEST).is_file():
            return folder
    return None


def _flat(value: Any, above: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{above}.{name}" if above else str(name))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value[:64]):
            yield from _flat(inner, f"{above}[{index}]")
    elif value is not None and not any(word in above for word in _NOISE):
        yield above, str(value)[:500]
