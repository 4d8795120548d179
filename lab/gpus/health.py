"""What a look at this machine found, and what a person types to mend it."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SYSTEM_PROGRAMS = "/usr/sbin:/sbin"  # rarely on a user's PATH


class Check(NamedTuple):
    """One finding. `warn`: present and not usable, which does not matter for runs without it."""

    subject: str
    state: str  # "ok" | "-" (absent) | "warn" | "bad"
    detail: str
    fix: str = ""  # commands that mend it, which download nothing and end no containers


def as_root(command: str) -> str:
    """The command as this user types it."""
    return command if os.geteuid() == 0 else f"sudo {command}"


def join_group_of(path: str | Path) -> str:
    """How to join the group that may use this device or socket; "" where that is root's, or has no name."""
    try:
        gid = os.stat(path).st_gid
        group, user = grp.getgrgid(gid).gr_name, pwd.getpwuid(os.getuid()).pw_name
    except (OSError, KeyError):
        return ""
    if gid == 0 or gid in os.getgroups():
        return ""
    return as_root(f"usermod -aG {group} {user}; then log in again")


def program_path(name: str, env: Mapping[str, str]) -> str | None:
    """Where the program is, on PATH or among the system's own."""
    return shutil.which(name, path=f"{env.get('PATH') or os.defpath}:{SYSTEM_PROGRAMS}")
