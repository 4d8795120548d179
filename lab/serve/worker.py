"""Work on recordings in a process of its own: a task on stdin, JSON on stdout."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec

from lab.core.files import replacing
from lab.errors import LabError

ADDRESS_SPACE = 12 << 30
CPU_S = 900


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """timeline and perfetto write `target`; diff answers with the comparison of `paths` (two)."""

    what: Literal["timeline", "perfetto", "diff"]
    paths: tuple[str, ...]
    target: str = ""


class Done(msgspec.Struct, kw_only=True):
    error: str = ""
    notes: list[str] = []
    answer: dict[str, Any] = {}


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        done = do(task)
    except LabError as error:
        done = Done(error=f"{error.what}{f' ({error.fix})' if error.fix else ''}")
    except MemoryError:
        done = Done(error="not enough memory to read it")
    sys.stdout.buffer.write(msgspec.json.encode(done))


def do(task: Task) -> Done:
    paths = [Path(path) for path in task.paths]
    if task.what == "timeline":
        from lab.serve.timeline import columns_of, write_columns

        columns = columns_of(paths)
        with replacing(Path(task.target), lasting=False) as file:
            write_columns(columns, file)
        return Done(notes=columns.header["notes"])
    if task.what == "perfetto":
        from lab.serve.export import write_perfetto

        return Done(notes=write_perfetto(paths, Path(task.target)))
    from lab.compare.diff.comparison import compare
    from lab.compare.diff.text import problems, text

    found = compare(*paths)
    shown = found.shown
    rows = [
        {
            "op": row.op,
            "dims": row.dims,
            "before": row.kernel_a,
            "after": row.kernel_b,
            "change_us": row.ns / 1000,
            "kind": row.kind,
            "confidence": row.confidence,
        }
        for row in sorted(shown.rows, key=lambda row: -abs(row.ns))[:200]
    ]
    answer = {"text": text(found, 20), "rows": rows, "comparable": shown.comparable}
    return Done(answer=answer, notes=problems(found))


if __name__ == "__main__":
    main()
