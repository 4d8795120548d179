"""The daemon's clock readings."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from lab.errors import EngineError


def moment(text: str) -> datetime:
    """The daemon's RFC 3339 time with up to nine decimals, as UTC."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    if match is None:
        raise EngineError(f"the engine tells a time that is none: {text!r}")
    zone = match[3].replace("Z", "+00:00")
    micros = (match[2] or ".0")[1:7].ljust(6, "0")
    return datetime.fromisoformat(f"{match[1]}.{micros}{zone}").astimezone(timezone.utc)
