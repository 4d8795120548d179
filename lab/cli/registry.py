"""What `lab` can be asked: one line per room, and the commands that belong to none.

A room's folder is `lab/rooms/NAME`. Its commands are click objects of `lab.rooms.NAME.cli`: `run_X` for
`lab run X`, and `X` for `lab X`, which reads recordings.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

Lazy = dict[str, tuple[str, str]]  # command -> (module:attribute, help line)


class Room(NamedTuple):
    """run and read map a command's name to its help line; smoke is its smallest experiment, on a CPU.

    needs: the modules, and behind a + the programs, that an image must have.
    """

    name: str
    question: str
    run: dict[str, str]
    read: dict[str, str] = {}
    smoke: str = ""
    needs: str = "torch"


ROOMS = (
    Room(
        "sweep",
        "How do NCCL/RCCL channels × threads starve GEMMs, and which rank waits for whom?",
        run={"sweep": "Sweep channels x threads of NCCL/RCCL."},
        read={
            "gemm": "Why GEMM times vary: Excel reports, overlap, cause, merged traces.",
            "ranks": "Which rank makes the others wait, why, and what a repair gives; hangs.",
        },
        smoke="sweep -c 28 -t 256 --ranks 2",
        needs="torch numpy",
    ),
    Room(
        "nan",
        "Where are NaN and Inf born in an LLM, from modules down to SASS instructions?",
        run={
            "nan": "Watch every module's outputs for NaN and Inf.",
            "nixnan": "Watch floating-point instructions with nixnan.",
        },
        read={"nan": "Where NaN and Inf are born: analyse runs, read nixnan logs."},
        smoke="nan baseline --model tiny --device cpu --layers 2 --max-new-tokens 2",
        needs="torch transformers",
    ),
    Room(
        "nsys",
        "What does each phase of a Transformer cost the GPU?",
        run={"nsys": "Profile Transformers, and answer where their GPU time goes."},
        read={"nsys": "Read captures of nsys or torch.profiler: phases, reports, answers."},
        smoke="nsys --model-size tiny --profile-type forward --measure-steps 2",
    ),
    Room(
        "kernels",
        "Which kernels does a model launch, and what does each cost in time and joules?",
        run={"kernels": "Profile, replay and price every kernel a model launches."},
        read={"kernels": "Every launch of a model: catalogue, chart, C++, audits."},
        smoke="kernels profile tiny-bloom --max-new-tokens 2",
        needs="torch transformers",
    ),
    Room(
        "semicrf",
        "Why does a streaming semi-Markov CRF give NaN or wrong gradients, and how does an exact one do?",
        run={"semicrf": "Train, diagnose and check a streaming semi-Markov CRF."},
        smoke="semicrf check --batches 2",
    ),
    Room(
        "trials",
        "How often does a command fail, and which change makes it fail less?",
        run={
            "trials": "Run a command many times, in cells: how often it fails, which change helps.",
            "replay": "Run the same training steps again: the first tensor whose bits differ.",
        },
        smoke="trials -n 3 --cell none --cell tf32_off -- python -c pass",
        needs="",
    ),
)

# What `lab analyze --only` can be asked for -> the room with its analyse_NAME(), like analyse().
SECTIONS = {
    "gemm": "lab.rooms.sweep",
    "ranks": "lab.rooms.sweep",
    "phases": "lab.rooms.nsys",
    "kernels": "lab.rooms.kernels",
}

# What lab scans with C where it can -> the module whose library_state() says whether it does.
SCANNERS = {
    "tensors on a CPU": "lab.rooms.nan.watch.native",
}

# What compares nixnan logs for `lab diff`: recognises(path) and diff(a, b, repeat_a, as_json).
DIFF_OF_LOGS = "lab.rooms.nan.nixnan.cli"


def removed() -> dict[str, str]:
    """What could be typed in the release before -> what to type instead; `lab --help` lists none of these.

    {args} stands for the arguments after the old name. A row goes with the next release.
    """
    import json

    rows: dict[str, str] = json.loads(Path(__file__).with_name("removed.json").read_text(encoding="utf-8"))
    return rows


# Extra of the package -> the Python packages that it installs.
EXTRAS = {
    "analysis": "numpy pandas openpyxl jinja2 matplotlib isal pyarrow",
    "host": "docker",
    "mcp": "mcp",
    "query": "duckdb",
    "serve": "starlette uvicorn",
    "slurm": "submitit",
    "workload": "torch transformers triton",
}


def run_commands() -> Lazy:
    """The experiments of `lab run`."""
    return {
        name: (f"lab.rooms.{room.name}.cli:run_{name}", text)
        for room in ROOMS
        for name, text in room.run.items()
    }


def smoke_runs() -> dict[str, tuple[str, ...]]:
    """Each room's smallest experiment, as `lab run` takes it."""
    return {room.name: tuple(room.smoke.split()) for room in ROOMS if room.smoke}


def commands() -> Lazy:
    """The commands of `lab`, in the order of --help."""
    reading = {
        name: (f"lab.rooms.{room.name}.cli:{name}", text)
        for room in ROOMS
        for name, text in room.read.items()
    }
    return {
        "run": ("lab.cli.commands:run", "Run a room's experiment: plan, execute, analyse, report."),
        **reading,
        "analyze": ("lab.cli.commands:analyze", "Analyse a run, or a recording that lab did not make."),
        "inspect": ("lab.cli.inspect:inspect", "Show what a recording is, what it lacks, what reads it."),
        "diff": ("lab.cli.diff:diff", "What changed between two recordings, split exactly."),
        "check": ("lab.compare.cli:check", "Is HEAD slower than BASE? Exit code 0, 1, or 3 for undecided."),
        "same": ("lab.compare.same.cli:same", "Did two runs compute the same? From which op on not?"),
        "serve": ("lab.serve.cli:serve", "All runs below a folder as pages on this machine."),
        "query": ("lab.serve.cli:query", "Ask all runs below a folder in SQL."),
        "mcp": ("lab.serve.cli:mcp", "Read-only tools over all runs for an assistant (MCP, stdio)."),
        "export": ("lab.serve.cli:export", "Runs and recordings for Perfetto, Chrome, Excel, Parquet."),
        "runs": ("lab.cli.runs:runs", "List, show, stop and clean up runs."),
        "fetch": ("lab.cli.fetch:fetch", "Download a model into the cache that steps read."),
        "setup": ("lab.cli.setup:setup", "Get the image for this machine, try it, print the next command."),
        "images": ("lab.cli.setup:images", "List, build and check images."),
        "doctor": ("lab.cli.doctor:doctor", "Show what this machine offers: GPUs, engine, packages, disk."),
    }
