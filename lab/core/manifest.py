"""manifest.json: what produced every file of a run, documented in docs/manifest.md."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Literal

import msgspec

from lab.core.files import read_json, write_atomic
from lab.core.gpu import Gpu, GpuProcess
from lab.core.step import Outcome, Step
from lab.errors import UsageError

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1


Origin = Literal["checkout", "installed"]
Used = Literal["copy", "mounted", "image"]  # the run's copy; that, mounted into the image; the image's own


class Kind(str, enum.Enum):
    """Where the numbers of a run come from. Runs of older versions may be replayed."""

    measured = "measured"
    replayed = "replayed"
    synthetic = "synthetic"


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size_bytes: int
    sha256: str


class Neighbours(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processes of others on a step's GPUs; `during`: each with the most memory that it was seen to hold."""

    at_start: tuple[GpuProcess, ...] = ()
    during: tuple[GpuProcess, ...] = ()
    at_end: tuple[GpuProcess, ...] = ()


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a step saw, by its own word (lab/workload/launch.py); null: it could not be read."""

    attempt: int = 1
    node: str = ""
    image_id: str | None = None  # the content of the image that it ran in
    python: str = ""
    env: dict[str, str] = {}  # its variables of GPU work, secrets redacted
    not_passed: tuple[str, ...] = ()  # the caller's variables of GPU work that it did not have
    cpus: int | None = None
    cpu_limit: float | None = None  # its control group's quota, in CPUs
    memory_limit_bytes: int | None = None
    pids_limit: int | None = None
    gpus: tuple[Gpu, ...] | None = None
    neighbours: Neighbours | None = None  # null: its GPUs were not looked at
    differences: tuple[str, ...] = ()  # from the plan, a sentence each


class StepRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A planned step, and once it has run, its outcome and files.

    `outcome` is null with `attempts` > 0 if the step was running when the driver died.
    """

    step: Step
    fingerprint: str
    attempts: int = 0
    outcome: Outcome | None = None
    files: dict[str, FileRecord] = {}
    lab_sha256: str | None = None  # the lab that the step imported, by its own word
    report: StepReport | None = None  # what it saw; null: it has not run, or did not say


class ImageCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `lab images check` found in the image: `ok` when it contains all that it promises."""

    ok: bool
    checked_utc: str
    python: str
    archs: tuple[str, ...] = ()  # GPU architectures that its torch has code for
    cuda: str | None = None
    hip: str | None = None
    versions: dict[str, str] = {}
    tools: tuple[str, ...] = ()  # programs found on PATH inside


class ImageRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    ref: str
    id: str | None = None  # the image's content id on the engine that ran it
    digests: tuple[str, ...] = ()  # registry digests; empty for an image built locally
    wheel_sha256: str | None = None
    lab_version: str | None = None  # of the lab inside, and the hash of its content; null: not read
    lab_sha256: str | None = None
    checked: ImageCheck | None = None  # null: this image was never checked here


class Lab(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lab that planned a run, and whose code its steps import. Null in runs of before this was kept."""

    version: str
    commit: str | None = None
    dirty: bool | None = None  # local changes, or files of the package that git does not know
    sha256: str | None = None  # of the package's content
    origin: Origin | None = None
    used: Used | None = None  # which copy the steps import; its content has `sha256` in every case


class Manifest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything known about a run. Times are UTC, ISO 8601."""

    schema_version: int = SCHEMA_VERSION
    id: str
    room: str
    kind: Kind = Kind.measured
    created_utc: str
    lab: Lab
    command: tuple[str, ...]
    engine: str
    engine_version: str | None = None  # as the engine says it; null: it has none of its own
    image: ImageRecord | None = None
    images: tuple[ImageRecord, ...] = ()  # further images, which steps name; `image` is that of the others
    analysis_image: ImageRecord | None = None  # where the run's own driver analysed; null: in its own process
    container: dict[str, Any] | None = None  # uid, gid and mounts, when steps ran in containers
    host: dict[str, str | int]
    gpus: tuple[Gpu, ...] = ()
    env: dict[str, str] = {}
    versions: dict[str, str] = {}
    config: dict[str, Any] = {}
    steps: list[StepRecord] = []


def save(manifest: Manifest, path: Path) -> None:
    write_atomic(path, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def load(path: Path) -> Manifest:
    """Read and validate a manifest. Raises MissingError, or BadDataError that names the invalid field."""
    fix = "this is not the folder of a run: name one that `lab runs list` shows"
    return read_json(path, Manifest, "the manifest", version=SCHEMA_VERSION, fix=fix)


def refuse_change(subject: str, recorded: str, present: str, *, fix: str = "start a new run") -> None:
    """Raises UsageError where they differ: results from before and after a change are not comparable."""
    if recorded != present:
        raise UsageError(
            f"this run began with {subject}, and its results would not be comparable with new ones",
            location=f"{recorded} then, {present} now",
            fix=fix,
        )
