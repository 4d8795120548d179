"""`make bench`: every bench in turn, and their figures as tables in docs/speed.md.

    python -m bench                      # all; hours
    python -m bench tracelens help       # these, and their tables; the others' stay
    python -m bench --print help         # without a word to the page

Each bench measures lab and its peer in the same run. What cannot be measured here is a line that says why.
"""

from __future__ import annotations

import compileall
import importlib
import subprocess
import sys
import traceback

from bench.table import PAGE, Row, measured, merged, table_of, taken, when_and_where
from lab.errors import LabError

BENCHES = (
    "help",
    "commands",
    "formats",
    "read_trace",
    "diff",
    "integrity",
    "simulator",
    "tracelens",
    "collectives",
    "many_traces",
    "launch",
    "serve",
    "nsys_projection",
    "replay_coverage",
    "gantt",
    "gantt_frames",
    "nixnan_parser",
    "nan_watch",
    "nan_guard",
    "gate_aa",
    "diff_aa",
    "flops_coverage",
    "semicrf_validation",
    "semicrf",
    "semicrf_decoding",
    "semicrf_long",
    "in_order_causes",
    "trials_gpu",
    "trials_rates",
)
NEED_A_GPU = ("in_order_causes", "trials_gpu")
FAILURES = (RuntimeError, OSError, ValueError, AssertionError, ImportError, LabError)


def main(words: list[str]) -> int:
    keep = "--print" not in words
    wanted = [word for word in words if word != "--print"] or list(BENCHES)
    if unknown := [name for name in wanted if name not in BENCHES]:
        sys.exit(f"there is no bench {unknown[0]!r}; there are: {', '.join(BENCHES)}")
    compileall.compile_dir(PAGE.parents[1] / "lab", quiet=2)
    broken = 0
    for name in wanted:
        when = when_and_where()
        ended = run(name)
        broken += not ended
        if not (rows := taken()):
            continue
        table = table_of(rows, when)
        if keep:
            text = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(merged(text, {name: table}, BENCHES), encoding="utf-8")
        else:
            print(table)
    return 1 if broken else 0


def run(name: str) -> bool:
    """Run one bench; False where it ended in an error, which is then a line of its table."""
    print(f"\n== {name}", flush=True)
    sys.argv = [f"bench.{name}"]  # some have flags of their own
    if name in NEED_A_GPU and not has_gpu():
        measured(Row(first_line(name), absent="needs a GPU"))
        return True
    try:
        module = importlib.import_module(f"bench.{name}")
        print(module.__doc__.splitlines()[0])
        module.main()
    except SystemExit as error:  # 1 only says that a bar was missed, which stands in its line
        if not isinstance(error.code, str):
            return True
        measured(Row(first_line(name), absent=error.code.splitlines()[0]))
        return False
    except (*FAILURES, subprocess.SubprocessError) as error:
        traceback.print_exc()
        measured(Row(first_line(name), absent=f"{type(error).__name__}: {str(error).splitlines()[0]}"))
        return False
    return True


def first_line(name: str) -> str:
    """What a bench is about, without importing what it needs."""
    text = (PAGE.parents[1] / "bench" / f"{name}.py").read_text(encoding="utf-8")
    return text.split('"""')[1].splitlines()[0].rstrip(".")


def has_gpu() -> bool:
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
