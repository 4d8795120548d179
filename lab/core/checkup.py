"""What a look at this machine found, and the commands that mend it."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SYSTEM_PROGRAMS = "/usr/sbin:/sbin"  # rarely on a user's PATH


class Mend(NamedTuple):
    """Commands that mend a finding. They download nothing and end no containers.

    then: what a person still has to do after them.
    """

    commands: tuple[tuple[str, ...], ...]
    needs_root: bool = True
    then: str = ""

    def text(self) -> str:
        """As a person types it."""
        sudo = "sudo " if self.needs_root and os.geteuid() != 0 else ""
        typed = "; ".join(f"{sudo}{shlex.join(command)}" for command in self.commands)
        return f"{typed}; then {self.then}" if self.then else typed


class Check(NamedTuple):
    """One finding. `warn`: present and not usable, which does not matter for runs without it."""

    subject: str
    state: str  # "ok" | "-" (absent) | "warn" | "bad"
    detail: str
    mend: Mend | None = None


def join_group_of(path: str | Path) -> Mend | None:
    """The group that may use this device or socket; None where that is root's own, or has no name."""
    try:
        gid = os.stat(path).st_gid
        group, user = grp.getgrgid(gid).gr_name, pwd.getpwuid(os.getuid()).pw_name
    except (OSError, KeyError):
        return None
    if gid == 0 or gid in os.getgroups():
        return None
    return Mend((("usermod", "-aG", group, user),), then="log in again")


def program_path(name: str, env: Mapping[str, str]) -> str | None:
    """Where the program is, on PATH or among the system's own."""
    return shutil.which(name, path=f"{env.get('PATH') or os.defpath}:{SYSTEM_PROGRAMS}")
