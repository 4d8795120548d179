"""Errors of the Docker engine and its SDK, translated into lab's by the table in `messages`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import requests
from docker.errors import APIError, DockerException

from lab.engines.docker.messages import ROWS, UNREACHABLE, Row
from lab.errors import EngineError, EngineLost, GpuError, LabError
from lab.secrets import redact, secret_values


def gpus_present() -> str:
    """The GPUs of this machine in one line, for an error about one that is not present."""
    from lab.gpus.discover import discover

    try:
        found = discover()
    except GpuError as error:
        return f"none can be listed: {error.what}"
    return ", ".join(f"{gpu.number} {gpu.name} {gpu.uuid}" for gpu in found) or "none"


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
    # Mounted host path -> the option that named it.
    option_of: Mapping[str, str] = field(default_factory=dict)
    present: Callable[[], str] = gpus_present


@contextlib.contextmanager
def translated(context: Context) -> Iterator[None]:
    """Around every call to the engine: its errors become lab's."""
    try:
        yield
    except (DockerException, requests.exceptions.RequestException) as error:
        raise translate(error, context=context) from error


def translate(error: Exception, *, context: Context) -> LabError:
    """lab's error for one of the SDK, the daemon or a build."""
    explanation = error.explanation if isinstance(error, APIError) else None
    text = redact(str(explanation or error).strip(), secret_values())
    if isinstance(error, APIError):
        return known_error(text, context)
    if context.container and isinstance(error, requests.exceptions.RequestException):
        return lost(context, text)
    if isinstance(error, requests.exceptions.RequestException) or "fetching server API version" in text:
        return _known(text, context, UNREACHABLE) or EngineError(text)
    return _known(text, context) or EngineError(f"error from Docker's client: {text}", where=_where(context))


def known_error(text: str, context: Context) -> LabError:
    """lab's error for a message of the engine itself."""
    return _known(text, context) or EngineError(
        f"error from the Docker engine: {text}", where=_where(context)
    )


def lost(context: Context, text: str) -> EngineLost:
    """The engine is gone; its container may still run, because many engines leave containers running."""
    return EngineLost(
        f"lost the Docker engine at {context.endpoint} while step {context.step!r} ran ({text}); "
        f"its container {context.container[:12]} may still run",
        where=context.run_dir,
        fix=f"when the engine is back: lab run --resume {context.run_dir}",
    )


def _known(text: str, context: Context, rows: tuple[Row, ...] = ROWS) -> LabError | None:
    for row in rows:
        match = re.search(row.pattern, text, re.IGNORECASE | re.DOTALL)
        if match:
            words = _Words(context, text, match.groupdict())
            fix = row.fix.format_map(words) or None
            return row.kind(row.what.format_map(words), where=_where(context), fix=fix)
    return None


class _Words(dict[str, str]):
    """The values for a row's braces, looked up one by one: GPUs are listed only for a row that names them."""

    def __init__(self, context: Context, text: str, groups: Mapping[str, str | None]) -> None:
        super().__init__({name: value for name, value in groups.items() if value is not None}, text=text)
        self._context = context

    def __missing__(self, key: str) -> str:
        if key == "present":
            return self._context.present()
        if key == "option":
            return self._context.option_of.get(self["path"], "an option or the environment")
        return str(getattr(self._context, key)) or "unknown"


def _where(context: Context) -> str | None:
    return f"step {context.step!r}" if context.step else None
