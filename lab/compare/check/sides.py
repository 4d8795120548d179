"""Where the two sides of a check run: folders, git revisions in worktrees, images."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from lab.core.step import Step
from lab.engines.docker.client import Nature, ask
from lab.engines.docker.host import host_context
from lab.errors import EngineError, MissingError, UsageError
from lab.gpus.discover import discover
from lab.images import spec as images
from lab.images.command_line import arguments_of
from lab.images.container import Mount, container_spec
from lab.images.docker_cli import endpoint_of, engine_cli
from lab.images.spec import Image, Vendor

PREFIX = "image:"  # before the name of an image, so that no folder or revision is taken for one
WORK, OUT = "/work", "/out"  # inside: where the command runs, read-only, and where its recordings go
ENGINE_S = 60.0  # under load an engine is slow, and would be taken for one that maps no users


class Side(NamedTuple):
    """`name` is base or head; the command runs in `folder`, with an image in a container of it."""

    name: str
    folder: Path
    image: Image | None = None
    commit: str = ""  # of a worktree, whose folder is another each time


@contextlib.contextmanager
def sides(base: str, head: str) -> Iterator[tuple[Side, Side]]:
    """Where each side's command runs: a folder as it is, a git revision in a worktree that goes away again,
    or an image (`image:NAME`) with the folder that the caller is in.

    Raises MissingError for what is none of these.
    """
    with tempfile.TemporaryDirectory(prefix="lab-check-") as root, contextlib.ExitStack() as stack:
        pair = []
        for name, text in (("base", base), ("head", head)):
            if text.startswith(PREFIX):
                pair.append(Side(name, Path.cwd(), image_named(text.removeprefix(PREFIX))))
            elif Path(text).is_dir():
                pair.append(Side(name, Path(text)))
            else:
                commit = _git(
                    # A revision that begins with `-` must not become an option of git.
                    *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}"),
                    location=text,
                )
                folder = stack.enter_context(_worktree(text, commit, Path(root) / name))
                pair.append(Side(name, folder, commit=commit))
        yield pair[0], pair[1]


@contextlib.contextmanager
def _worktree(revision: str, commit: str, folder: Path) -> Iterator[Path]:
    _git("worktree", "add", "--detach", str(folder), commit, location=revision)
    try:
        yield folder
    finally:
        # --force, because the command may have left files in it.
        _git("worktree", "remove", "--force", str(folder), location=revision)


def _git(*words: str, location: str) -> str:
    try:
        result = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise MissingError("git is not installed", location=location, fix="give two folders") from error
    if result.returncode:
        raise MissingError(
            result.stderr.strip() or "no such folder or git revision here",
            location=location,
            fix="name a folder, or a revision of the repository you are in",
        )
    return result.stdout.strip()


def notes(pair: tuple[Side, Side]) -> list[str]:
    """Notes on what was not compared though a reader may expect it."""
    base, head = (side.commit for side in pair)
    texts = []
    if base and base == head:
        texts.append(f"BASE and HEAD are the same commit ({base[:12]}): equal programs are compared")
    changed = (
        base and head and _git("status", "--porcelain", "--untracked-files=no", location="this checkout")
    )
    if changed:
        texts.append("the checkout has changes that are not committed: they are on neither side")
    return texts


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
    nature = ask(endpoint_of(os.environ), ENGINE_S) or Nature()
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


def remove_container(name: str) -> None:
    """Remove a container whose client was interrupted. Raises EngineError for an engine that hangs."""
    if cli := engine_cli():
        try:
            subprocess.run([*cli, "rm", "--force", name], capture_output=True, check=False, timeout=ENGINE_S)
        except subprocess.TimeoutExpired as error:
            raise EngineError(
                f"the engine did not remove the container {name} in {ENGINE_S:g} s",
                fix="see lab doctor",
            ) from error
