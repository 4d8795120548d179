"""A Step is one process to run, an Outcome how it ended: all that rooms and engines share."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Annotated

import msgspec

from lab.errors import ConfigError

# Tells a training run's ranks the limit at which the engine would end them silently (lab.workload.stall).
STALL_LIMIT = "LAB_STALL_TIMEOUT_S"
SOURCE = "/src"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")


class Status(str, enum.Enum):
    """How a step ended. Only `ok` is a result; any other status is a row with its reason."""

    ok = "ok"
    failed = "failed"
    oom = "oom"
    timeout = "timeout"
    interrupted = "interrupted"
    skipped = "skipped"


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process. It runs in the run folder (`/out` in a container), so every path is relative.

    Raises ConfigError when the name or a path could escape the run folder.
    """

    name: str
    argv: tuple[str, ...]  # argv[0] == "python" means the engine's own interpreter
    folder: str = "."  # where the step writes; run_output.log is here
    env: dict[str, str] = {}
    num_gpus: Annotated[int, msgspec.Meta(ge=0)] = 0  # on each node
    gpu: str | None = None  # the one GPU that it must have, by number or UUID; None: any
    node: str | None = None  # the host it must run on, where an engine has several
    image: str | None = None  # the image it must run in; None: wherever the run's flags say
    source: str | None = None  # a folder of the caller's that it reads: read-only at SOURCE in a container
    # With more than one, the slurm engine fills in {node_rank}, {master_addr} and {master_port}.
    nodes: Annotated[int, msgspec.Meta(ge=1)] = 1
    tools: tuple[str, ...] = ()  # wrapped around the process by the image: "nsys", "nixnan"
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] | None = None  # wall clock
    stall_timeout_s: Annotated[float, msgspec.Meta(gt=0)] | None = None  # without one line of output
    settle_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # pause before the start, so that clocks recover
    expects: tuple[str, ...] = ()  # globs; a step fails if one of them matches no file
    logs: tuple[str, ...] = ()  # globs of further logs whose last lines explain a failure
    labels: dict[str, str | int] = {}  # for the room's analysis: threads, channels, ...

    def __post_init__(self) -> None:
        if not NAME.match(self.name):
            raise ConfigError(f"step name {self.name!r} is not of the form [a-z0-9][a-z0-9._-]*")
        if not self.argv:
            raise ConfigError(f"step {self.name!r} has an empty command")
        for path in (self.folder, *self.expects, *self.logs):
            check_relative(path, owner=f"step {self.name!r}")

    def fingerprint(self, *context: str) -> str:
        """Identifies what is measured: command, environment, tools and `context` (image id, config)."""
        hardware = (self.num_gpus,) if self.nodes == 1 else (self.num_gpus, self.nodes)
        pinned = tuple(f"{at}={one}" for at, one in (("gpu", self.gpu), ("node", self.node)) if one)
        env = sorted(item for item in self.env.items() if item[0] != STALL_LIMIT)
        measured = (self.argv, env, *hardware, *pinned, self.tools, context)
        return hashlib.sha256(msgspec.json.encode(measured)).hexdigest()[:16]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a step ended: its status, the reason as a sentence, and the evidence."""

    status: Status
    reason: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    started_utc: str = ""
    tail: tuple[str, ...] = ()  # the last lines of its output
    peak_mem_bytes: int | None = None  # largest resident set of one process of the step

    @property
    def ok(self) -> bool:
        return self.status is Status.ok


def check_relative(path: str, *, owner: str) -> None:
    """Refuse a path that could leave its folder."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise ConfigError(f"{owner}: path {path!r} leaves the run folder")


def check_steps(steps: Iterable[Step]) -> None:
    """Two steps of one name or one folder would overwrite each other's results."""
    for field in ("name", "folder"):
        values = [getattr(step, field) for step in steps]
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise ConfigError(f"two steps share the {field} {twice[0]!r}")


def utc_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
