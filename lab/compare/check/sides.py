"""Where the two sides of a check run: folders, git revisions in worktrees, images."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lab.compare.check.in_image import PREFIX, id_of, image_named
from lab.core.files import exclusive, holder_pid
from lab.core.provenance import git as asked_git
from lab.errors import BadDataError, MissingError
from lab.images.spec import Image

TEMPORARY, HELD = "lab-check-", "held"  # a folder of worktrees, and the file in it that its check locks


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
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as root, contextlib.ExitStack() as stack:
        stack.enter_context(exclusive(Path(root) / HELD, busy="a check runs here", fix="run it again"))
        found = []
        for name, given in (("base", base), ("head", head)):
            if given.startswith(PREFIX):
                found.append(Side(name, Path.cwd(), image_named(given.removeprefix(PREFIX))))
            elif Path(given).is_dir():
                found.append(Side(name, Path(given)))
            else:
                commit = _git(
                    *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{given}^{{commit}}"),
                    where=given,
                )
                _remove_left_over()
                folder = stack.enter_context(_worktree(given, commit, Path(root) / name))
                found.append(Side(name, folder, commit=commit))
        yield found[0], found[1]


def _remove_left_over() -> None:
    """The worktrees of checks that were killed: nobody holds their folders any more."""
    listed = _git("worktree", "list", "--porcelain", where="this repository").splitlines()
    for line in listed:
        folder = Path(line.removeprefix("worktree "))
        if line.startswith("worktree ") and _is_left_over(folder.parent):
            # Another check may remove it at the same time: what is left is the next one's.
            words = ["git", "worktree", "remove", "--force", "--force", str(folder)]
            subprocess.run(words, capture_output=True, check=False)


def _is_left_over(root: Path) -> bool:
    """Whether a check of this user, which was killed, left this folder of worktrees."""
    held = root / HELD
    try:
        is_ours = root.name.startswith(TEMPORARY) and held.stat().st_uid == os.getuid()
    except OSError:  # not there, or in another user's folder
        return False
    return is_ours and holder_pid(held) is None


@contextlib.contextmanager
def _worktree(revision: str, commit: str, folder: Path) -> Iterator[Path]:
    _git("worktree", "add", "--detach", str(folder), commit, where=revision)
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder), where=revision)


def _git(*words: str, where: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise MissingError("git is not installed", location=where, fix="give two folders instead") from error
    if done.returncode:
        said = done.stderr.strip() or "no such folder or git revision here"
        raise MissingError(
            said, location=where, fix="name a folder, or a revision of the repository you are in"
        )
    return done.stdout.strip()


def described(side: Side) -> dict[str, str]:
    """What tells this side from another: its commit, or its folder with what is in it as far as git knows;
    its image."""
    found = {"commit": side.commit} if side.commit else {"folder": str(side.folder.resolve())}
    commit = None if side.commit else asked_git(side.folder, "rev-parse", "HEAD")
    if commit:
        found |= {"commit": commit, "changes": _changes(side.folder)}
    if side.image:
        found |= {"image": side.image.ref, "image id": id_of(side.image)}
    return found


def _changes(folder: Path) -> str:
    """A digest of what is changed in tracked files and not committed. Raises BadDataError if git fails."""
    words = ["git", "-C", str(folder), "diff", "--binary", "HEAD", "--", "."]
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()
        raise BadDataError(f"git cannot say what is changed: {why}", location=folder, fix=shlex.join(words))
    return hashlib.sha256(done.stdout).hexdigest()[:16] if done.stdout else "none"


def notes(both: tuple[Side, Side]) -> list[str]:
    """What a reader of the verdict may take for compared, and is not."""
    base, head = (side.commit for side in both)
    found = []
    if base and base == head:
        found.append(f"BASE and HEAD are the same commit ({base[:12]}): equal programs are compared")
    changed = base and head and _git("status", "--porcelain", "--untracked-files=no", where="this checkout")
    if changed:
        found.append("the checkout has changes that are not committed: they are on neither side")
    return found
