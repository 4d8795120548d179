"""Where the two sides of a check run: folders, git revisions in worktrees, images."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lab.compare.check.in_image import PREFIX, image_named
from lab.errors import MissingError
from lab.images.spec import Image


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
