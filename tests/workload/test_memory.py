"""What a process may take: the lesser of the host's free memory and its control group's limit."""

from __future__ import annotations

import pytest

from lab.workload import launch
from lab.workload.launch import available_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("group", "limit", "expected"),
    [
        ("0::/job\n", "max", 8 * GIB),
        ("0::/job\n", str(2 * GIB), 2 * GIB),
        ("0::/job\n", str(64 * GIB), 8 * GIB),
        ("4:memory:/job\n", str(2 * GIB), 2 * GIB),
        ("4:memory:/job\n", str((1 << 63) - 4096), 8 * GIB),  # version 1 has no word for none
        ("", "", 8 * GIB),
    ],
)
def test_the_lesser_of_host_and_group_counts(monkeypatch, group, limit, expected):
    name = "memory/job/memory.limit_in_bytes" if "memory" in group else "job/memory.max"
    files = {
        "/proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {8 * GIB // 1024} kB\n",
        "/proc/self/cgroup": group,
        f"/sys/fs/cgroup/{name}": limit,
    }
    monkeypatch.setattr(launch, "text", lambda path: files.get(path, ""))
    assert available_bytes() == expected
    del files["/proc/meminfo"]
    assert available_bytes() is None
