"""The memory that a process may take: its control group's limit, and what the host has left."""

from __future__ import annotations

from lab.workload import launch


def available_bytes() -> int | None:
    """Return what this process may still take by Linux' estimate and its group's limit; None if not known."""
    lines = (line.split() for line in launch.text("/proc/meminfo").splitlines())
    host_kib = next((int(words[1]) for words in lines if words[:1] == ["MemAvailable:"]), None)
    if host_kib is None:
        return None
    limit = launch.number(launch.limit("memory"))
    return host_kib * 1024 if limit is None else min(host_kib * 1024, limit)
