"""What identifies this machine and this lab, without importing anything heavy."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import msgspec

import lab
from lab.core.content import content_sha256, is_left_out
from lab.core.manifest import Lab
from lab.errors import MissingError

# In a git hook these name another repository than the tree that is asked about.
ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")
GIT_S = 60.0  # on a loaded machine or a slow disk git takes seconds; without its answer no commit is recorded


def lab_identity() -> Lab:
    """Version, and the commit when lab runs from a git checkout."""
    source = Path(lab.__file__).parent.parent
    has_history = (source / ".git").exists()
    is_checkout = has_history or (source / "pyproject.toml").is_file()
    identity = Lab(version=lab.__version__, origin="checkout" if is_checkout else "installed")
    top, _, commit = (git(source, "rev-parse", "--show-toplevel", "HEAD") or "").rpartition("\n")
    if not has_history or not top or Path(top) != source.resolve():  # no git, or a tree of another repository
        return identity
    return msgspec.structs.replace(identity, commit=commit, dirty=_is_dirty(source))


def lab_with_content() -> Lab:
    """The same with the hash of the package's files as they are now."""
    package = Path(lab.__file__).parent
    # Before git is asked: the run's copy is hashed after it, so that no edit between the two goes unnoticed.
    try:
        sha256 = content_sha256(package)
    except OSError as error:
        raise MissingError(f"cannot read lab's own files: {error}", location=package) from error
    return msgspec.structs.replace(lab_identity(), sha256=sha256)


def _is_dirty(source: Path) -> bool | None:
    """Whether a tracked file has changed, or the package has a file that is not tracked."""
    changed = git(source, "status", "--porcelain", "--untracked-files=no")
    untracked = git(source, "ls-files", "--others", "--", "lab")  # ignored ones too: Python imports them
    if changed is None or untracked is None:
        return None
    paths = [name.split("/") for name in untracked.splitlines()]
    return bool(changed) or not all(any(map(is_left_out, names)) for names in paths)


def host() -> dict[str, str | int]:
    return {
        "name": platform.node(),
        "os": _os_name(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "mem_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": sys.version.split()[0],
    }


def git(folder: Path, *arguments: str) -> str | None:
    """git's answer about this tree; None without git, or if it fails."""
    try:
        process = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env={name: value for name, value in os.environ.items() if name not in ELSEWHERE},
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # no git here: only the version identifies lab
    return process.stdout.strip() if process.returncode == 0 else None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(
                (line.split(":", 1)[1].strip() for line in file if line.startswith("model name")),
                platform.machine(),
            )
    except OSError:
        return platform.machine()
