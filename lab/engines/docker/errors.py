"""Errors of engines, toolkits and Docker's SDK, translated into lab's by the rows of messages.toml."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import requests
from docker.errors import APIError, DockerException

from lab import errors
from lab.errors import EngineError, EngineLost, LabError
from lab.secrets import redact, secret_values

FAILURES = (DockerException, requests.exceptions.RequestException)


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the head of messages.toml."""

    pattern: str
    error: str
    summary: str
    fix: str = ""


@functools.cache
def messages() -> dict[str, list[Row]]:
    """The rows for engines that answer ("engine") and for those that do not ("unreachable")."""
    text = Path(__file__).with_name("messages.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, list[Row]])


@dataclass(frozen=True)
class Context:
    """What lab was doing: what a reader needs besides the daemon's message."""

    endpoint: str
    image: str = ""  # lab's name of it
    ref: str = ""
    step: str = ""
    driver: str = ""  # NVIDIA's, on this host
    run_dir: str = ""
    container: str = ""  # set once there is one


@contextlib.contextmanager
def translated(context: Context) -> Iterator[None]:
    """Around every call to the engine: its errors become lab's."""
    try:
        yield
    except FAILURES as error:
        raise translate(error, context=context) from error


def translate(error: Exception, *, context: Context) -> LabError:
    """lab's error for one of the SDK or the daemon."""
    explanation = error.explanation if isinstance(error, APIError) else None
    text = redact(str(explanation or error).strip(), secret_values())
    if isinstance(error, APIError):
        return translate_message(text, context)
    no_answer = isinstance(error, requests.exceptions.RequestException)
    if context.container and no_answer:
        return lost(context, text)
    if no_answer or "fetching server API version" in text:
        return _by_row(text, context, "unreachable") or EngineError(text)
    return translate_message(text, context, source="Docker's client")


def translate_message(text: str, context: Context, source: str = "the Docker engine") -> LabError:
    """lab's error for a message of the engine itself."""
    error = _by_row(text, context, "engine")
    return error or EngineError(f"error from {source}: {text}", location=_where(context))


def lost(context: Context, text: str) -> EngineLost:
    """The engine is gone; its container may still run, because many engines leave containers running."""
    return EngineLost(
        f"lost the Docker engine at {context.endpoint} while step {context.step!r} ran ({text}); "
        f"its container {context.container[:12]} may still run",
        location=context.run_dir,
        fix=f"when the engine is back: lab run --resume {context.run_dir}",
    )


def _by_row(text: str, context: Context, table: str) -> LabError | None:
    for row in messages()[table]:
        match = re.search(row.pattern, text, re.IGNORECASE | re.DOTALL)
        if match:
            fields = _Fields(context, text, match.groupdict())
            kind: type[LabError] = getattr(errors, row.error)
            fix = row.fix.format_map(fields) or None
            return kind(row.summary.format_map(fields), location=_where(context), fix=fix)
    return None


class _Fields(dict[str, str]):
    """The values for a row's braces."""

    def __init__(self, context: Context, text: str, groups: Mapping[str, str | None]) -> None:
        super().__init__({name: value for name, value in groups.items() if value is not None}, text=text)
        self._context = context

    def __missing__(self, key: str) -> str:
        return str(getattr(self._context, key)) or "unknown"


def _where(context: Context) -> str | None:
    return f"step {context.step!r}" if context.step else None
