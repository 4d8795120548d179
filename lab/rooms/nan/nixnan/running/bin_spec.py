"""The user's specification of exponent bins, checked before it reaches nixnan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from lab.errors import ConfigError, not_here


def read_bin_spec(path: Path) -> str:
    """The text of a specification of exponent bins.

    If the tool cannot read it, it ends with exit code 0 before running anything.
    """
    try:
        text = path.read_text(encoding="utf-8")
        spec = msgspec.json.decode(text)
    except FileNotFoundError as error:
        raise not_here("no such bin specification", path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the bin specification is not JSON: {error}", location=path) from error
    check_bin_spec(spec, path)
    return text


def check_bin_spec(spec: Any, path: Path) -> None:
    """{"count": n, "f16": [[low, high], ...], ...}: exponents in order. Raises ConfigError."""
    if not isinstance(spec, dict) or not isinstance(spec.get("count"), int):
        raise ConfigError('a bin specification is {"count": n, "f16": [[low, high], ...]}', location=path)
    for name, bins in spec.items():
        if name == "count":
            continue
        if name not in ("f16", "bf16", "f32", "f64") or not isinstance(bins, list):
            raise ConfigError(
                f"{name!r} is not a type with a list of bins", location=path, fix="f16, bf16, f32 or f64"
            )
        for bounds in bins:
            good = (
                isinstance(bounds, list) and len(bounds) == 2 and all(isinstance(end, int) for end in bounds)
            )
            if not good or bounds[0] > bounds[1]:
                raise ConfigError(f"{bounds!r} of {name} is not a range [low, high]", location=path)
