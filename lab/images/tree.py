"""The source tree that images are built from."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

from lab.core.files import make_folder, sha256_of
from lab.errors import MissingError, writing

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
