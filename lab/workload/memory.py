"""The memory that a process may take: its control group's limit, and what the host has left."""

from __future__ import annotations

from pathlib import Path

CGROUPS, PROC = Path("/sys/fs/cgroup"), Path("/proc")
NO_LIMIT = 1 << 60  # version 1 writes a number of this size where there is none


def available_bytes(root: Path = CGROUPS, proc: Path = PROC) -> int | None:
    """Return what this process may still take by Linux' estimate and its group's limit; None if not known."""
    lines = (line.split() for line in text_of(proc / "meminfo").splitlines())
    host_kib = next((int(words[1]) for words in lines if words[:1] == ["MemAvailable:"]), None)
    if host_kib is None:
        return None
    group = memory_group(root, proc)
    limit = limit_bytes(group) if group else None
    return min(host_kib * 1024, limit) if limit is not None else host_kib * 1024


def memory_group(root: Path = CGROUPS, proc: Path = PROC) -> Path | None:
    """Return the process' control group for memory; in a container its own is mounted at the root."""
    for line in text_of(proc / "self" / "cgroup").splitlines():
        number, _, entry = line.partition(":")
        controllers, _, path = entry.partition(":")
        if "memory" in controllers.split(","):
            folders, counter = [root / "memory" / path.lstrip("/"), root / "memory"], "memory.oom_control"
        elif number == "0" and not controllers:
            folders, counter = [root / path.lstrip("/"), root], "memory.events"
        else:
            continue
        if group := next((folder for folder in folders if (folder / counter).is_file()), None):
            return group
    return None


def limit_bytes(group: Path) -> int | None:
    """Return a control group's limit, of version 2 or 1; None where it has none."""
    numbers = (number_of(group / name) for name in ("memory.max", "memory.limit_in_bytes"))
    limit = next((number for number in numbers if number is not None), None)
    return limit if limit is not None and limit < NO_LIMIT else None


def number_of(path: Path) -> int | None:
    text = text_of(path).strip()
    return int(text) if text.isdecimal() else None


def text_of(path: Path) -> str:
    return bytes_of(path).decode(errors="replace")


def bytes_of(path: Path) -> bytes:
    """Return a file of the kernel, empty where it is not there or not ours to read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
