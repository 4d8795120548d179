"""What is built, and from which source tree.

One target per image, or two where workloads need another image than analysis does.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.core.files import make_folder, sha256_of
from lab.errors import MissingError, UsageError, writing
from lab.images import spec as images

ROOT = Path(__file__).parents[2]
BUILD = Path("build/images")

Say = Callable[[str], None]


def is_tree(root: Path) -> bool:
    return (root / "pyproject.toml").is_file() and (root / "docker").is_dir()


def check_tree(root: Path) -> None:
    if not is_tree(root):
        raise MissingError(
            "images are built from lab's source tree, and this lab is installed without it",
            location=root,
            fix="run `lab images build` from a checkout: pip install -e .",
        )


@contextlib.contextmanager
def build_lock(root: Path, say: Say) -> Iterator[None]:
    """Two builds at once would change each other's files; the second waits for the first."""
    folder = make_folder(root / BUILD)
    with writing(folder), (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build of this tree")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def file_hash(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise MissingError(f"cannot read: {error.strerror}", location=path) from error


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One image to build."""

    name: str
    image: str
    ref: str
    base: str
    python_version: str
    dockerfile: Path
    lock: Path
    wheels: tuple[str, ...] = ()
    base_digest: str | None = None
    licences: str = "Apache-2.0"
    labels: dict[str, str] = {}

    @property
    def base_ref(self) -> str:
        """The base by its digest if image.toml has one, because a tag can be moved to other content."""
        return f"{self.base}@{self.base_digest}" if self.base_digest else self.base


def targets(names: Sequence[str] = ()) -> list[Target]:
    """The targets of these names: an image's name means all its targets, a target's name only itself."""
    available = [target for name in images.names() for target in targets_of(images.load(name))]
    refuse_unknown(names, [name for target in available for name in (target.image, target.name)])
    return [target for target in available if not names or target.name in names or target.image in names]


def targets_of(image: images.Image) -> list[Target]:
    common: dict[str, Any] = {
        "image": image.name,
        "base": image.base,
        "base_digest": image.base_digest,
        "python_version": image.python_version,
        "licences": image.licences,
        "labels": image.build.labels,
    }
    wheels = image.build.workload_wheels
    analysis = Target(
        name=_name_of(image.ref),
        ref=image.ref,
        dockerfile=Path(image.dockerfile),
        lock=Path("images", image.name, "requirements.lock"),
        wheels=() if image.workload_ref else wheels,
        **common,
    )
    if not (image.workload_ref and image.workload_dockerfile):
        return [analysis]
    workload = Target(
        name=_name_of(image.workload_ref),
        ref=image.workload_ref,
        dockerfile=Path(image.workload_dockerfile),
        lock=Path("images", image.name, "workload.lock"),
        wheels=wheels,
        **common,
    )
    return [analysis, workload]


def refuse_unknown(names: Sequence[str], available: Sequence[str]) -> None:
    if unknown := sorted(set(names) - set(available)):
        raise UsageError(
            f"unknown image {unknown[0]!r}", fix=f"one of: {', '.join(dict.fromkeys(available))}"
        )


def _name_of(ref: str) -> str:
    return ref.rsplit("/", 1)[-1].split(":")[0]
