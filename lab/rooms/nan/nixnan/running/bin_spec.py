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
        found = msgspec.json.decode(text)
    except FileNotFoundError as error:
        raise not_here("no such bin specification", path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the bin specification is not JSON: {error}", location=path) from error
    check_bin_spec(found, path)
    return text


def check_bin_spec(found: Any, path: Path) -> None:
    """{"count": n, "f16": [[low, high], ...], ...}: exponents in order. Raises ConfigError."""
    if not isinstance(found, dict) or not isinstance(found.get("count"), int):
        raise ConfigError('a bin specification is {"count": n, "f16": [[low, high], ...]}', location=path)
    for name, bins in found.items():
        if name == "count":
            continue
        if name not in ("f16", "bf16", "f32", "f64") or not isinstance(bins, list):
            raise ConfigError(
                f"{name!r} is not a type with a list of bins", location=path, fix="f16, bf16, f32 or f64"
            )
        for one in bins:
            good = isinstance(one, list) and len(one) == 2 and all(isinstance(end, int) for end in one)
            if not good or one[0] > one[1]:
                raise ConfigError(f"{one!r} of {name} is not a range [low, high]", location=path)
