"""The image of a run: its content, the lab inside it, and whether steps import that lab or this host's."""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lab.core import content
from lab.core.manifest import ImageRecord, Lab
from lab.core.options import HostLab
from lab.core.provenance import lab_with_content
from lab.core.run import LAB, Run
from lab.core.snapshot import launched, report_env, step_env
from lab.core.step import Step
from lab.errors import EngineError, UsageError
from lab.images import compare, spec
from lab.images.acquire import TITLE_LABEL, labels_of
from lab.images.container import TMP, USERNS_MODE, ContainerSpec, Mount, least_spec, user_inside
from lab.images.docker_cli import engine_cli
from lab.images.probe import load_check, looked_once
from lab.images.spec import Image, repository_of
from lab.images.targets import Target, targets

if TYPE_CHECKING:
    from lab.engines.docker.client import Daemon

LIMIT_S = 120
PIDS = 64
PROGRAM = Path(content.__file__).read_text(encoding="utf-8")


class ImageRecords:
    """Each image is asked for once, by whichever thread comes first: later ones get the same content."""

    def __init__(self, image: Image, daemon: Callable[[], Daemon]) -> None:
        self._image, self._daemon = image, daemon
        self._mutex = threading.Lock()
        self._records: dict[str, ImageRecord] = {}

    def of(self, ref: str | None = None) -> ImageRecord:
        """By default of the image that steps run in. Raises EngineError when the engine does not have it."""
        from lab.engines.docker.errors import Context, translated

        daemon, ref = self._daemon(), ref or self._image.workload_ref or self._image.ref
        with self._mutex:
            if ref not in self._records:
                with translated(Context(endpoint=daemon.endpoint, image=self._image.name, ref=ref)):
                    inspected = daemon.client.inspect_image(ref)  # type: ignore[no-untyped-call]
                labels = inspected["Config"].get("Labels") or {}
                refuse_moved_tag(ref, labels, self._image)
                self._records[ref] = ImageRecord(
                    name=self._image.name,
                    ref=ref,
                    id=inspected["Id"],
                    digests=tuple(inspected.get("RepoDigests") or ()),
                    wheel_sha256=labels.get("lab.wheel.sha256"),
                    checked=load_check(inspected["Id"]),
                )
            return self._records[ref]

    def with_lab_inside(self, ref: str | None = None) -> ImageRecord:
        """The same, with the version and content of the lab in the image."""
        record = self.of(ref)
        inside = lab_inside(self._daemon(), str(record.id), self._image.python)
        return msgspec.structs.replace(record, lab_version=inside.version, lab_sha256=inside.sha256)


class Inside(msgspec.Struct, frozen=True):
    """The lab that an image's Python would import; None where there is none."""

    sha256: str | None = None
    version: str | None = None


def choose(lab: Lab, image: ImageRecord, policy: HostLab) -> bool:
    """Whether this host's lab is mounted into `image`. Raises UsageError if they differ and it may not."""
    if image.lab_sha256 == lab.sha256:
        return False
    if policy == "mount" or (policy == "auto" and lab.origin == "checkout"):
        return True
    raise UsageError(
        f"{image.ref} holds another lab than this host: {_named(image.lab_version, image.lab_sha256)} there, "
        f"{_named(lab.version, lab.sha256)} here",
        location=image.id,
        fix="use an image of this version of lab (lab images build, or pull it), install the image's version "
        "here, or add --host-lab mount to run this host's lab in the image",
    )


def lab_inside(daemon: Daemon, image_id: str, python: str) -> Inside:
    """Hash the lab in the image of this content id, once."""
    program_hash = hashlib.sha256(f"{python}\0{PROGRAM}".encode()).hexdigest()[:8]
    look = partial(_ask, daemon, image_id, python)
    return looked_once(image_id, f"lab.{program_hash}.json", Inside, look)


def _ask(daemon: Daemon, image_id: str, python: str) -> Inside:
    """Run `lab.core.content` in a container that may do nothing else."""
    from lab.engines.docker import container as containers
    from lab.engines.docker.errors import Context, translated
    from lab.engines.docker.leftovers import driver_labels

    context = Context(endpoint=daemon.endpoint, ref=image_id, step="which lab")
    name, labels = f"lab-which-{uuid.uuid4().hex[:12]}", {"lab.run_dir": "none", **driver_labels()}
    mapping = daemon.user_mapping
    user = user_inside(mapping, os.getuid(), os.getgid())
    env = {"HOME": TMP, "PYTHONDONTWRITEBYTECODE": "1"}
    spec = least_spec(image_id, (python, "-c", PROGRAM), user, USERNS_MODE[mapping], env, PIDS)
    spec = msgspec.structs.replace(spec, tmpfs={TMP: "size=64m,mode=1777"})
    container, _ = containers.start(daemon, spec, name=name, context=context, labels=labels)
    try:
        with translated(context):
            code = daemon.client.wait(container, timeout=LIMIT_S)["StatusCode"]
            printed = daemon.client.logs(container, stdout=True, stderr=False)
    finally:
        containers.remove(daemon.client, container)
    # A Python that cannot run this could not import a lab either.
    return msgspec.json.decode(printed, type=Inside) if code == 0 else Inside()


def _named(version: str | None, sha256: str | None) -> str:
    return f"{version or 'of no version'} ({sha256[:12]})" if sha256 else "none that Python finds"


def with_lab(spec: ContainerSpec, run: Run, step: Step, image: Image) -> ContainerSpec:
    """The container of a step that imports the lab its run names (the image's own, or the run's copy), and
    reports what it sees before its command begins."""
    lab_env = step_env(run, step, "/out", spec.env.get("PYTHONPATH", ""))
    env = {**spec.env, **lab_env, **report_env(run, step)}
    command = launched(run, step, "/out", image.python, spec.command)
    # The packages that lab needs beside an image's own come last on its path (lab/__init__.py).
    copy = Mount(source=str(run.root.absolute() / LAB), target=f"/out/{LAB}", read_only=True)
    mounts = (*spec.mounts, copy) if run.manifest.lab.used == "mounted" else spec.mounts
    return msgspec.structs.replace(spec, env=env, mounts=mounts, command=command)


def refuse_moved_tag(ref: str, labels: Mapping[str, str], image: Image) -> None:
    """Raises EngineError for a tag that was moved to another of lab's images.

    Its packages are not those that the run's record names.
    """
    title = labels.get(TITLE_LABEL, "")
    titles = {f"lab/{target.name}" for target in targets()}
    if {title, repository_of(ref)} <= titles - {repository_of(image.base)} and title != repository_of(ref):
        raise EngineError(
            f"the image {ref} points at another image: it is labelled {title}",
            fix=f"build or pull it again: lab images build {image.name}",
        )


def lab_difference(target: Target) -> str | None:
    """Say how the lab in the image of `target` on the engine differs from this one; None if it does not."""
    from lab.engines.docker.client import connect

    image, daemon = spec.load(target.image), connect()
    record = ImageRecords(image, lambda: daemon).of(target.ref)
    inside = lab_inside(daemon, str(record.id), image.python)
    labels = labels_of(engine_cli() or (), target.ref)
    return compare.lab_difference(target, labels, inside.version, inside.sha256, lab_with_content())
