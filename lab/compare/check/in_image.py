"""One process of a gate in a container: the command that the engine's own program runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from lab.core.step import Step
from lab.engines.docker.client import Nature, ask
from lab.engines.docker.host import host_context
from lab.errors import EngineError, UsageError
from lab.gpus.discover import discover
from lab.images import spec as images
from lab.images.command_line import arguments_of
from lab.images.container import Mount, container_spec
from lab.images.docker_cli import engine_cli
from lab.images.endpoint import endpoint_of
from lab.images.spec import Image, Vendor

PREFIX = "image:"  # before the name of an image, so that no folder or revision is taken for one
WORK, OUT = "/work", "/out"  # inside: where the command runs, read-only, and where its recordings go
REMOVE_S = 60.0
ASK_S = 60.0  # under load an engine is slow, and would be taken for one that maps no users


def image_named(text: str) -> Image:
    """One of lab's images by name, else any reference that the engine has.

    Of a stranger's image the vendor is that of this machine's GPUs. Raises UsageError for no name.
    """
    if not text or text.startswith("-"):
        raise UsageError(f"{PREFIX}{text} names no image", fix=f"{PREFIX}cuda, or {PREFIX}REFERENCE")
    if text in images.names():
        return images.load(text)
    gpus = discover()
    vendor: Vendor = "none" if not gpus else "amd" if gpus[0].vendor == "amd" else "nvidia"
    return Image(
        name="given",
        summary="",
        vendor=vendor,
        ref=text,
        base="",
        python="python3",
        python_version="",
        dockerfile="",
    )


def command_in(
    image: Image, words: Sequence[str], folder: Path, out: Path, variables: dict[str, str], name: str
) -> list[str]:
    """The engine's command line: `folder` read-only at /work, `out` at /out, this machine's GPUs if the image
    is for them, no network. Nothing is pulled. Raises EngineError where no engine is here."""
    cli = engine_cli()
    if cli is None:
        raise EngineError("neither docker nor podman is on PATH", fix="install one: see lab doctor")
    gpus = [gpu for gpu in discover() if gpu.vendor == image.vendor]
    nature = ask(endpoint_of(os.environ), ASK_S) or Nature()
    host = msgspec.structs.replace(
        host_context(str(out), gpus), user_mapping=nature.user_mapping, cdi=nature.cdi
    )
    spec = container_spec(image, Step(name="check", argv=tuple(words), num_gpus=len(gpus)), gpus, host)
    spec = msgspec.structs.replace(
        spec,
        env={**spec.env, **variables},
        mounts=(*spec.mounts, Mount(source=str(folder), target=WORK, read_only=True)),
        working_dir=WORK,
    )
    return [*cli, "run", "--rm", "--pull", "never", "--name", name, *arguments_of(spec)]


def inside(path: Path) -> str:
    """Where a file of the folder of recordings is in the container."""
    return str(PurePosixPath(OUT) / path.name)


def end(name: str) -> None:
    """Remove a container whose client was interrupted. Raises EngineError for an engine that hangs."""
    if cli := engine_cli():
        try:
            subprocess.run([*cli, "rm", "--force", name], capture_output=True, check=False, timeout=REMOVE_S)
        except subprocess.TimeoutExpired as error:
            raise EngineError(
                f"the engine did not remove the container {name} in {REMOVE_S:g} s",
                fix="see lab doctor",
            ) from error
