"""Asking: the child process is started, fed and bounded here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

import lab
from lab.serve.sql.answer import Answer, Question

GRACE_S = 20.0  # for imports and reading tables
MOST_OUTPUT = 64 << 20
KEPT = ("PATH", "HOME", "XDG_CACHE_HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH")


def ask(
    root: Path, sql: str, *, most_rows: int = 1000, timeout_s: float = 30.0, memory_mb: int = 512
) -> Answer:
    """The answer of a child process; one that is killed or crashes is an error in the answer."""
    question = Question(
        root=str(root), sql=sql, most_rows=most_rows, timeout_s=timeout_s, memory_mb=memory_mb
    )
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lab.serve.sql.child"],
            input=msgspec.json.encode(question),
            capture_output=True,
            timeout=timeout_s + GRACE_S,
            env=environment(),
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(error=f"stopped after {timeout_s + GRACE_S:g} s", limited=True)
    if done.returncode or len(done.stdout) > MOST_OUTPUT:
        return Answer(
            error=_reason(done.returncode, done.stderr.decode(errors="replace")), limited=done.returncode < 0
        )
    return msgspec.json.decode(done.stdout, type=Answer)


def environment() -> dict[str, str]:
    """What a child gets to know: where programs and lab are, and no secrets."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(Path(lab.__file__).parent.parent), *_python_path()])}


def _python_path() -> list[str]:
    return [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]


def _reason(code: int, stderr: str) -> str:
    missing = [line for line in stderr.splitlines() if line.startswith("ModuleNotFoundError")]
    if missing:
        return f"{missing[-1].split(': ', 1)[-1]}: pip install 'lab[query]'"
    if code < 0:
        return f"the query was killed by signal {-code}: it used too much memory or time"
    last = stderr.strip().splitlines()[-1:] or [f"exit code {code}"]
    return f"the query failed: {last[0][:500]}"
