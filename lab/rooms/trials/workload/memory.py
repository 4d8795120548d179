"""Whether the kernel killed for memory while a trial ran, and whose limit was hit.

The kernel counts its kills per control group: `memory.events` (version 2), `memory.oom_control` (version 1).
A limit of the group that the trial runs in is the trial's own, as `mem_limit` of an image or MemoryMax of
systemd sets it; a kill without one is the host's shortage, or that of a group above.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from lab.core.words import size_text
from lab.workload.memory import CGROUPS, PROC, bytes_of, limit_bytes, memory_group, number_of, text_of

OURS = b"lab.rooms.trials.workload"
CHARGED_AT_ONCE = 1 << 20  # bytes and more than a kernel charges in one go


@dataclass(frozen=True)
class Kills:
    """What happened between two looks. of_group None: the kernel does not say."""

    of_group: int | None = None  # processes of the trial's group that the kernel killed for memory
    own_limit: bool = False  # the group's own limit was hit
    limit_bytes: int | None = None
    shared: bool = False  # other trials ran in the group, and count to its limit
    of_host: int | None = None  # such kills anywhere on the host


class Memory:
    """Looked at before a trial and after it."""

    def __init__(self, root: Path = CGROUPS, proc: Path = PROC) -> None:
        self._proc, self._folder = proc, memory_group(root, proc)
        self._counts_before, self._shared = self._counts(), self._is_shared()

    def kills(self) -> Kills:
        """Since it was made."""
        present, past = self._counts(), self._counts_before
        kills, hits, host = (_rise(past[name], present[name]) for name in ("kills", "hits", "host"))
        if kills is None:
            return Kills(of_host=host)
        killed = Kills(kills, bool(hits) or self._is_full(), self._limit(), self._shared, host)
        return replace(killed, shared=killed.shared or self._is_shared())

    def _counts(self) -> dict[str, int | None]:
        events = {} if self._folder is None else _fields(self._folder / "memory.events")
        host = _fields(self._proc / "vmstat").get("oom_kill")
        if events or self._folder is None:
            return {"kills": events.get("oom_kill"), "hits": events.get("oom"), "host": host}
        kills = _fields(self._folder / "memory.oom_control").get("oom_kill")
        return {"kills": kills, "hits": number_of(self._folder / "memory.failcnt"), "host": host}

    def _is_full(self) -> bool:
        """Version 1: a limit of memory and swap together, as Docker sets it, is hit without being counted."""
        assert self._folder is not None
        peak, limit = number_of(self._folder / "memory.max_usage_in_bytes"), self._limit()
        return peak is not None and limit is not None and peak >= limit - CHARGED_AT_ONCE

    def _limit(self) -> int | None:
        assert self._folder is not None
        return limit_bytes(self._folder)

    def _is_shared(self) -> bool:
        if self._folder is None:
            return False
        pids = [pid for pid in text_of(self._folder / "cgroup.procs").split() if pid != str(os.getpid())]
        return any(OURS in bytes_of(self._proc / pid / "cmdline") for pid in pids)


def blame(kills: Kills) -> tuple[str, str]:
    """-> whose the kill was: "trial", "machine" or "" for none; and the evidence in words."""
    if not kills.of_group:
        return "", ""
    if not kills.own_limit:
        return (
            "machine",
            "the kernel killed a process of it because the host, or a group above, had no memory left",
        )
    limit = "" if kills.limit_bytes is None else f" of {size_text(kills.limit_bytes)}"
    if kills.shared:
        return (
            "machine",
            f"the kernel killed a process of it at the memory limit{limit}, which several trials share",
        )
    return "trial", f"it hit its memory limit{limit}"


def who_killed(kills: Kills) -> str:
    """What is known of a SIGKILL that was not for memory in the trial's own group."""
    if kills.of_group == 0 or kills.of_host == 0:
        return "killed from outside or by itself: the kernel killed none of it for memory"
    if kills.of_host:
        return "killed, perhaps for memory: the kernel did so on this host meanwhile"
    return "killed from outside, by itself or for memory: nothing here says which"


def _rise(past: int | None, present: int | None) -> int | None:
    return None if past is None or present is None else present - past


def _fields(path: Path) -> dict[str, int]:
    """`name number` per line."""
    pairs = (line.split() for line in text_of(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
