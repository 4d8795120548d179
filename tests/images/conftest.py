"""Stand-ins for docker programs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def dockers(tmp_path, monkeypatch):
    """Put stand-ins for docker on PATH, each in its own folder, in this order; -> their paths."""

    def put(*bodies: str) -> list[str]:
        paths = []
        for i, body in enumerate(bodies):
            path = tmp_path / f"bin{i}" / "docker"
            path.parent.mkdir()
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(0o755)
            paths.append(str(path))
        system = tmp_path / "system"
        system.mkdir()
        (system / "cat").symlink_to(shutil.which("cat"))
        monkeypatch.setenv("PATH", os.pathsep.join([*(str(Path(p).parent) for p in paths), str(system)]))
        return paths

    return put
