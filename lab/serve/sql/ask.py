"""Ask a question in SQL: the messages of the two processes, the child's start and limits, saved questions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import lab
from lab.serve.rows import RunRow, TableFile

GRACE_S = 20.0  # for imports and reading tables
MOST_OUTPUT = 64 << 20  # bytes
PASSED_ON = ("PATH", "HOME", "XDG_CACHE_HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_WORD = re.compile(r"[^a-z0-9]+")


def _names(words: str) -> tuple[str, ...]:
    return tuple(words.split())


# The columns of the index's own tables, in order; of text unless TYPES says otherwise.
RUNS = _names(
    "run id room state verdict lead integrity error kind created_utc ended_utc model host gpus gpu_count "
    "driver engine image image_id lab commit dirty steps_done steps_total command config versions env"
)
STEPS = _names(
    "run room step status reason seconds attempts started_utc exit_code peak_mem_bytes labels folder"
)
FINDINGS = _names(
    "run room created_utc id kind severity title text value unit lower_bound note file sha256 row evidence"
)
COLUMNS = {"runs": RUNS, "steps": STEPS, "findings": FINDINGS, "figures": FINDINGS}
CONTENTS = {
    "runs": "one row per run: outcome, verdict, hardware, versions, configuration (JSON)",
    "steps": "one row per step of every run",
    "findings": "one row per sentence of a verdict and per key figure, with its evidence",
    "figures": "the key figures among the findings",
}
SAVED: dict[str, str] = {
    "fastest sweeps of a week": """select run, title, value, unit, text
from figures
where room = 'sweep' and value is not null and created_utc > now()::timestamp - interval 7 day
order by title, value""",
    "what failed": """select r.run, r.room, s.step, s.status, s.reason, r.created_utc
from steps s join runs r using (run)
where s.status not in ('ok', 'skipped', 'planned') order by r.created_utc desc""",
    "not complete": """select run, room, state, integrity, error
from runs where integrity <> 'complete, as analysed'""",
    "verdicts that warn": """select r.created_utc, r.run, f.text
from findings f join runs r using (run)
where f.kind = 'verdict' and f.severity <> 'info' order by 1 desc""",
}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    root: str
    sql: str  # "": only the list of tables
    most_rows: int = 1000
    timeout_s: float = 30.0
    memory_mb: int = 512


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A table that can be asked; columns are listed for those that lab makes itself."""

    name: str
    contents: str = msgspec.field(name="what")
    files: int = 0
    columns: tuple[str, ...] = ()


class Answer(msgspec.Struct, kw_only=True):
    """rows hold JSON values; NaN and infinities are the texts `nan`, `inf`, `-inf`.

    cut: there are more rows than asked for, or than an answer holds; notes: what was left out. error is empty
    where the query succeeded.
    """

    columns: list[str] = []
    types: list[str] = []
    rows: list[list[Any]] = []
    cut: bool = False
    notes: list[str] = []
    error: str = ""
    limited: bool = False  # the error is a limit of time or memory, not the question's
    tables: list[TableInfo] = []
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        return not (self.cut or self.notes or self.error)


def ask(
    root: Path, sql: str, *, most_rows: int = 1000, timeout_s: float = 30.0, memory_mb: int = 512
) -> Answer:
    """Ask in a child process; one that is killed or crashes is an error in the answer."""
    question = Question(
        root=str(root), sql=sql, most_rows=most_rows, timeout_s=timeout_s, memory_mb=memory_mb
    )
    try:
        child = subprocess.run(
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
    if child.returncode or len(child.stdout) > MOST_OUTPUT:
        reason = _reason(child.returncode, child.stderr.decode(errors="replace"))
        return Answer(error=reason, limited=child.returncode < 0)
    return msgspec.json.decode(child.stdout, type=Answer)


def environment() -> dict[str, str]:
    """The environment of a child: where programs and lab are, and no secrets."""
    paths = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**paths, "PYTHONPATH": os.pathsep.join([str(Path(lab.__file__).parent.parent), *_python_path()])}


def _python_path() -> list[str]:
    return [word for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]


def _reason(code: int, stderr: str) -> str:
    missing = [line for line in stderr.splitlines() if line.startswith("ModuleNotFoundError")]
    if missing:
        return f"{missing[-1].split(': ', 1)[-1]}: pip install 'lab[query]'"
    if code < 0:
        return f"the query was killed by signal {-code}: it used too much memory or time"
    lines = stderr.strip().splitlines() or [f"exit code {code}"]
    return f"the query failed: {lines[-1][:500]}"


def table_name(room: str, table: str) -> str:
    """`sweep_configs`: what SQL calls tables/configs.csv of the room sweep."""
    return _WORD.sub("_", f"{room}_{table}".lower()).strip("_") or "_"


def room_tables(rows: Iterable[RunRow]) -> dict[str, list[tuple[RunRow, TableFile]]]:
    """The files behind each room's tables, by the name that SQL has for them."""
    tables: dict[str, list[tuple[RunRow, TableFile]]] = {}
    for row in rows:
        for file in row.tables:
            tables.setdefault(table_name(row.room, file.name), []).append((row, file))
    return {name: files for name, files in sorted(tables.items()) if name not in CONTENTS}


def infos(rows: list[RunRow]) -> list[TableInfo]:
    made_by_lab = [
        TableInfo(name=name, contents=text, columns=tuple(COLUMNS[name])) for name, text in CONTENTS.items()
    ]
    rooms = [
        TableInfo(name=name, contents=f"{files[0][1].file} of the room {files[0][0].room}", files=len(files))
        for name, files in room_tables(rows).items()
    ]
    return made_by_lab + rooms
