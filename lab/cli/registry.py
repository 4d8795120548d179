"""What `lab` can be asked: one line per room, and the commands that belong to none.

A room's folder is `lab/rooms/NAME`. Its commands are click objects of `lab.rooms.NAME.cli`: `run_X` for
`lab run X`, and `X` for `lab X`, which reads recordings.
"""

from __future__ import annotations

from typing import NamedTuple

Lazy = dict[str, tuple[str, str]]  # command -> (module:attribute, help line)


class Room(NamedTuple):
    """run and read map a command's name to its help line; smoke is its smallest experiment, on a CPU.

    scans maps a kind of file that a C file of the room scans to the module that finds its library.
    """

    name: str
    question: str
    run: dict[str, str]
    read: dict[str, str] = {}
    smoke: str = ""
    scans: dict[str, str] = {}


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
    ),
    Room(
        "nan",
        "Where are NaN and Inf born in an LLM, from modules down to SASS instructions?",
        run={
            "nan": "Watch every module's outputs for NaN and Inf.",
            "nixnan": "Watch floating-point instructions with nixnan.",
        },
        read={"nan": "Where NaN and Inf are born: analyse runs, read nixnan logs, compare."},
        smoke="nan baseline --model tiny --device cpu --layers 2 --max-new-tokens 2 --timing 0",
        scans={
            "nixnan logs": "lab.rooms.nan.nixnan.reading.native.find",
            "tensors on a CPU": "lab.rooms.nan.watch.native.find",
        },
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
            "trials": "Run a command many times, in cells: how often it fails, what cures it.",
            "replay": "Run the same training steps again: the first tensor whose bits differ.",
        },
        smoke="trials -n 3 --cell none --cell tf32_off -- python -c pass",
    ),
)

# What could be typed in the release before -> what to type instead; `lab --help` lists none of these.
# {args} stands for the arguments that the user gave after the old name, {run} for those of them that are
# options of `lab run`. A row goes with the next release.
REMOVED: dict[str, str] = {
    "sweep": "lab run {run} sweep {args}",
    "nixnan": "lab run {run} nixnan {args}",
    "semicrf": "lab run {run} semicrf {args}",
    "trials": "lab run {run} trials {args}",
    "replay": "lab run {run} replay {args}",
    # What only a checkout needs: scripts.
    "images prepare": "python scripts/images.py prepare {args}",
    "images pin": "python scripts/images.py pin {args}",
    "images gpu-env": "python scripts/images.py gpu-env {args}",
    "images show": "python scripts/images.py show {args}",
}


def run_commands() -> Lazy:
    """What `lab run` offers."""
    return {
        name: (f"lab.rooms.{room.name}.cli:run_{name}", text)
        for room in ROOMS
        for name, text in room.run.items()
    }


def smoke_runs() -> dict[str, tuple[str, ...]]:
    """Each room's smallest experiment, as `lab run` takes it."""
    return {room.name: tuple(room.smoke.split()) for room in ROOMS if room.smoke}


def scanners() -> dict[str, str]:
    """Each kind of file that lab scans with C where it can, and the module whose library_state() says so."""
    return {
        "traces": "lab.recordings.kineto.native.find",
        **{kind: module for room in ROOMS for kind, module in room.scans.items()},
    }


def commands() -> Lazy:
    """What `lab` itself offers, in the order of --help."""
    reading = {
        name: (f"lab.rooms.{room.name}.cli:{name}", text)
        for room in ROOMS
        for name, text in room.read.items()
    }
    return {
        "run": ("lab.cli.commands:run", "Run a room's experiment: plan, execute, analyse, report."),
        **reading,
        "analyze": ("lab.cli.commands:analyze", "Analyse a run, or a recording that lab did not make."),
        "inspect": ("lab.cli.inspect:inspect", "What a recording is, what it lacks, what can read it."),
        "diff": ("lab.compare.cli:diff", "What changed between two recordings, split exactly."),
        "check": ("lab.compare.cli:check", "Is HEAD slower than BASE? Exit code 0, 1, or 3 for undecided."),
        "same": ("lab.compare.same.cli:same", "Did two runs compute the same? From which op on not?"),
        "serve": ("lab.serve.cli:serve", "All runs below a folder as pages on this machine."),
        "query": ("lab.serve.cli:query", "Ask all runs below a folder in SQL."),
        "mcp": ("lab.serve.cli:mcp", "Read-only tools over all runs for an assistant (MCP, stdio)."),
        "export": (
            "lab.serve.cli:export",
            "Runs and recordings for Perfetto, Chrome, Excel, Parquet, Chakra.",
        ),
        "runs": ("lab.cli.runs:runs", "List, show, stop and clean up runs."),
        "fetch": ("lab.cli.fetch:fetch", "Download a model into the cache that steps read."),
        "setup": ("lab.cli.setup:setup", "Bring the image this machine needs, try it, say what is next."),
        "images": ("lab.cli.images:images", "List, build and check images."),
        "doctor": ("lab.cli.doctor:doctor", "Say what this machine offers: GPUs, engine, packages, disk."),
    }
