"""What a process may take: the lesser of the host's free memory and its control group's limit."""

from __future__ import annotations

import pytest

from lab.workload.memory import available_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("group", "limit", "expected"),
    [
        ("0::/job\n", "max", 8 * GIB),
        ("0::/job\n", str(2 * GIB), 2 * GIB),
        ("0::/job\n", str(64 * GIB), 8 * GIB),
        ("4:memory:/job\n", str(2 * GIB), 2 * GIB),
        ("4:memory:/job\n", str((1 << 63) - 4096), 8 * GIB),  # version 1 has no word for none
        ("", str(2 * GIB), 8 * GIB),
    ],
)
def test_the_lesser_of_host_and_group_counts(tmp_path, group, limit, expected):
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    (proc / "self/cgroup").write_text(group)
    is_old = "memory" in group
    folder = root / ("memory/job" if is_old else "job")
    folder.mkdir(parents=True)
    (folder / ("memory.oom_control" if is_old else "memory.events")).write_text("oom_kill 0\n")
    (folder / ("memory.limit_in_bytes" if is_old else "memory.max")).write_text(limit)
    assert available_bytes(root, proc) == expected
    (proc / "meminfo").unlink()
    assert available_bytes(root, proc) is None
