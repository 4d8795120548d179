"""`lab` as a person types it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def lab(
    command: str,
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 900,
) -> subprocess.CompletedProcess[str]:
    """Run one command line, `lab("nan parse", log)`; `env` adds to this process's environment."""
    return subprocess.run(
        [sys.executable, "-m", "lab", *command.split(), *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **(env or {})},
    )
