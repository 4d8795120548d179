"""Secrets are redacted by name and by value in manifests, logs, dry runs and errors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
# Names that match the pattern above but are not secret, as found on GPU nodes.
NOT_SECRET = re.compile(
    r"TOKENIZERS_PARALLELISM|KEYBOARD|SSH_AUTH_SOCK|XAUTHORITY|MAX_(NEW_)?TOKENS", re.IGNORECASE
)
HIDDEN = "[redacted]"
_SHORTEST = 6  # shorter values ("1", "true") would blank out innocent text


def is_secret(name: str) -> bool:
    return bool(SECRET_NAME.search(name)) and not NOT_SECRET.search(name)


def redact_env(env: Mapping[str, str], secrets: frozenset[str] = frozenset()) -> dict[str, str]:
    return {name: HIDDEN if is_secret(name) else redact(value, secrets) for name, value in env.items()}


def secret_values(env: Mapping[str, str] | None = None) -> frozenset[str]:
    """The values of this process's environment that must never be written down."""
    source = os.environ if env is None else env
    return frozenset(value for name, value in source.items() if is_secret(name) and len(value) >= _SHORTEST)


def redact(text: str, secrets: frozenset[str]) -> str:
    """The text with every secret hidden; secrets that overlap or hold one another leave no part behind."""
    pieces, end = [], 0
    for start, stop in _spans(text, secrets):
        if start >= end:
            pieces += [text[end:start], HIDDEN]
        end = max(end, stop)
    return "".join([*pieces, text[end:]])


def _spans(text: str, secrets: frozenset[str]) -> list[tuple[int, int]]:
    """Where secrets stand, in the order of the text."""
    return sorted(
        (match.start(), match.start() + len(value))
        for value in secrets
        if value in text
        for match in re.finditer(f"(?={re.escape(value)})", text)  # a look-ahead also finds overlaps
    )
