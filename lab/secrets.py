"""Secrets are redacted by name and by value in manifests, logs, dry runs and errors."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
# Names that match the pattern above but are not secret, as found on GPU nodes.
NOT_SECRET = re.compile(
    r"TOKENIZERS_PARALLELISM|KEYBOARD|SSH_AUTH_SOCK|XAUTHORITY|MAX_(NEW_)?TOKENS", re.IGNORECASE
)
HIDDEN = "[redacted]"
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
USERINFO = re.compile(r"(https?://|//|(?<![^\s=]))([^\s/?#]+)@", re.IGNORECASE)
NO_PASSWORD = ("", "x-oauth-basic", "x-oauth-token")  # code hosts take a token as the name
_SHORTEST = 6  # shorter values ("1", "true") would blank out innocent text
_MOST_TOKEN_BYTES = 4096


def is_secret(name: str) -> bool:
    return bool(SECRET_NAME.search(name)) and not NOT_SECRET.search(name)


def redact_env(env: Mapping[str, str], secrets: frozenset[str] = frozenset()) -> dict[str, str]:
    return {name: HIDDEN if is_secret(name) else redact(value, secrets) for name, value in env.items()}


def secret_values(env: Mapping[str, str] | None = None) -> frozenset[str]:
    """Collect what must never be written: secret variables, passwords in URLs, and the Hub's token.

    env: instead of this process's environment, and without the token file of the Hub's login.
    """
    source = os.environ if env is None else env
    # A client prints a value of several lines with its breaks escaped, so each line is a secret too.
    values = {
        text
        for name, value in source.items()
        if is_secret(name)
        for text in (value, value.strip(), *map(str.strip, value.splitlines()))
    }
    values |= {password for value in source.values() for password in _passwords(value)}
    if env is None and (token := hub_token(source)):
        values.add(token)
    return frozenset(value for value in values if len(value) >= _SHORTEST)


def hub_home(env: Mapping[str, str]) -> Path:
    """Locate the folder of the Hub's libraries, by their own variables."""
    home = env.get("XDG_CACHE_HOME") or "~/.cache"
    folder = env.get("HF_HOME") or os.path.join(home, "huggingface")
    return expanded(folder)


def expanded(path: str) -> Path:
    """The path with its variables and `~`, which stays as it is for a user without a home."""
    return Path(os.path.expanduser(os.path.expandvars(path)))


def hub_token(env: Mapping[str, str]) -> str | None:
    """Read the caller's token for the Hub: a variable, else the file that the Hub's login writes."""
    for name in TOKEN_VARIABLES:
        if token := env.get(name, "").strip():
            return token
    path = expanded(str(env.get("HF_TOKEN_PATH") or hub_home(env) / "token"))
    with contextlib.suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8") as file:
        return file.read(_MOST_TOKEN_BYTES).strip() or None
    return None


def _passwords(value: str) -> Iterator[str]:
    """Yield the passwords in a value such as http://user:password@proxy:3128, as written and decoded.

    Several URLs, one behind an option's `=`, and a proxy without its scheme are read too; in http://NAME@host,
    and before a password that stands for none, the name is the secret.
    """
    for scheme, info in USERINFO.findall(value) if "@" in value else ():
        name, colon, password = info.partition(":")
        if colon:
            yield from (password, unquote(password))
        if scheme.lower().startswith("http") and password in NO_PASSWORD:
            yield from (name, unquote(name))


def redact(text: str, secrets: frozenset[str]) -> str:
    """Hide every secret in the text; secrets that overlap or contain one another leave no part visible."""
    pieces, end = [], 0
    for start, stop in _spans(text, secrets):
        if start >= end:
            pieces += [text[end:start], HIDDEN]
        end = max(end, stop)
    return "".join([*pieces, text[end:]])


def _spans(text: str, secrets: frozenset[str]) -> list[tuple[int, int]]:
    """List the (start, end) of every secret, in the order of the text."""
    return sorted(
        (match.start(), match.start() + len(value))
        for value in secrets
        if value in text
        for match in re.finditer(f"(?={re.escape(value)})", text)  # a look-ahead also finds overlaps
    )
