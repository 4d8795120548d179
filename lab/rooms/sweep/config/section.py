"""What all sections of a config have in common."""

from __future__ import annotations

from typing import Any

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections; `frozen` is repeated below because type checkers do not inherit it."""


def doc(text: str, **limits: Any) -> msgspec.Meta:
    """The meaning of a key and the limits of its value."""
    return msgspec.Meta(description=text, **limits)
