"""`lab` as a person types it, in a process of its own; scripts of this tree as modules."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType


def start(
    command: str,
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | None = None,
) -> subprocess.Popen[str]:
    """Start one command line, `start("nan parse", log)`; `env` adds to this process's environment."""
    return subprocess.Popen(
        [sys.executable, "-m", "lab", *command.split(), *map(str, words)],
        cwd=cwd,
        text=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )


def lab(
    command: str,
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 900,
) -> subprocess.CompletedProcess[str]:
    """Run one command line to its end."""
    with start(command, *words, cwd=cwd, env=env) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def until(true: Callable[[], object], seconds: float = 300.0) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def script(name: str) -> ModuleType:
    """A fresh module of scripts/NAME.py."""
    path = Path(__file__).parents[1] / f"scripts/{name}.py"
    spec = importlib.util.spec_from_file_location(f"lab_script_{name}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
