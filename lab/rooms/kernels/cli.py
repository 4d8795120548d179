"""`lab run kernels` runs on the GPU; `lab kernels` reads what it recorded, without GPU or torch.

The readers take a run of `lab run kernels profile`, or bare Kineto traces of any torch and vendor.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lab.terminal.group import LazyGroup
from lab.terminal.options import Finite, as_json, option, out, with_options

if TYPE_CHECKING:
    from lab.power.energy import Energy


RUN = {
    "profile": (
        "lab.rooms.kernels.run_cli:profile",
        "Generate text under the profiler and the recorder.",
    ),
    "replay": (
        "lab.rooms.kernels.run_cli:replay",
        "Run the op of every launch again, and prove that the kernel is the same.",
    ),
    "energy": ("lab.rooms.kernels.run_cli:energy", "Joules per launch, per kernel, per token."),
}


@click.group("kernels", cls=LazyGroup, lazy=RUN)
def run_kernels() -> None:
    """Every launch of a model: profiled, replayed, measured in joules."""


READERS = {
    "unique": (
        "lab.rooms.kernels.catalogue.cli:unique",
        "Distinct launches (or every one): kernel, geometry, op, arguments, counts, times.",
    ),
    "gantt": (
        "lab.rooms.kernels.catalogue.cli:gantt",
        "A chart of compute, communication and copies by stream.",
    ),
    "cpp": ("lab.rooms.kernels.cli:cpp", "A C++ program that replays the catalogue."),
    "energy": ("lab.rooms.kernels.cli:energy_of_log", "Joules of a power log over a window."),
    "audit": ("lab.rooms.kernels.cli:audit", "Refuse impossible numbers, with the reason."),
}


@click.group("kernels", cls=LazyGroup, lazy=READERS)
def kernels() -> None:
    """Read profiles: distinct kernels, every launch, chart; generate C++; audit numbers.

    Profiles, replays and energy runs are made by `lab run kernels ...`.
    """


# Commands that rebuild a recording.
SOURCE = with_options(
    click.argument("source", type=click.Path(path_type=Path)),
    click.option(
        "--execution-trace",
        type=click.Path(path_type=Path),
        help="Recorded together with the trace; found automatically in a RUN.",
    ),
)
RANK = option(
    "--rank",
    type=click.IntRange(min=0),
    default=0,
    help="Which rank of a RUN over several GPUs.",
)

# Commands that read traces.
TRACES = click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
CAPTURE = click.option(
    "--capture",
    "captures",
    multiple=True,
    metavar="FILE|FOLDER",
    type=click.Path(path_type=Path),
    help="Where the graphs' operators are: the trace of their capture, the folder that vLLM or SGLang wrote, "
    "an eager trace of the same model. Repeat it for several.",
)
INDUCTOR = click.option(
    "--inductor",
    multiple=True,
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="What torch.compile wrote (torch_compile_debug, or its cache): fused ops and lines of the model. "
    "Such folders beside the trace are found. Repeatable.",
)
OUT = out("Where files go. [default: the run; for a bare trace, experiments/NAME_analysis]")
TABLE_OUTPUT = with_options(
    OUT,
    as_json("The table"),
    option(
        "-n",
        "--top",
        type=click.IntRange(min=0),
        default=20,
        help="Rows to print; all are written.",
    ),
)


@click.command("audit")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--board-limit",
    "board_limit_w",
    type=Finite(min=1),
    help="The board's power limit in watts, if the files do not contain it (GTX 1080 Ti: 250).",
)
@as_json("The audits")
def audit(folder: Path, board_limit_w: float | None, as_json: bool) -> None:
    """Refuse impossible numbers in FOLDER, a published measurement beside its power log.

    Every refusal names its reason and its factors. Exit code 0: nothing is refused.
    """
    import msgspec

    from lab.errors import MissingError, StepFailed, not_here
    from lab.rooms.kernels.audit import REFUSED, of_published

    if folder.is_file():
        raise MissingError("this is a file, not a folder", location=folder, fix=f"name {folder.parent}")
    if not folder.is_dir():
        raise not_here("no such folder", folder)
    checks = of_published(folder, board_limit_w)
    if not checks:
        raise MissingError(
            "nothing here can be audited",
            location=folder,
            fix="name the folder of a published measurement; a run of lab has its own: `lab analyze RUN`",
        )
    if as_json:
        click.echo(msgspec.json.encode(checks).decode())
    else:
        for check in checks:
            click.echo(f"{check.verdict:8} {check.name}: {check.answer}")
    refused = sum(check.verdict == REFUSED for check in checks)
    if refused:
        raise StepFailed(f"{refused} of {len(checks)} audits refuse these numbers", location=folder)


@click.command("cpp")
@SOURCE
@out("Folder of the program. [default: cpp/ in a RUN, otherwise experiments/NAME_cpp]")
@RANK
def cpp(source: Path, execution_trace: Path | None, out: Path | None, rank: int) -> None:
    """Write a C++ (libtorch) program that replays SOURCE: a profile's or a replay's RUN, or a trace.

    Build it with the CMake file beside it. `build/replay --cuda --repeats 50` prints the rows of replay.json:
    times, and a checksum of every result.
    """
    from lab.core.words import listed, plural
    from lab.errors import StepFailed
    from lab.rooms.kernels.cpp.generate import generate
    from lab.rooms.kernels.replay.args import PLAN_FILE, RAW_FILE, RawReplay, ReplayPlan, is_replay
    from lab.rooms.kernels.replay.calls.source import read_source
    from lab.rooms.kernels.trails import read_json

    raw = None
    if source.is_dir() and is_replay(source):
        plan = read_json(source / PLAN_FILE, ReplayPlan)
        raw = read_json(source / RAW_FILE, RawReplay) if (source / RAW_FILE).is_file() else None
    else:
        plan = read_source(source, execution_trace, rank)
    home = out or _home_of(source)
    files, left_out = generate(plan, home, raw)
    for path in files:
        click.echo(str(path))
    calls = plural(len(plan.signatures), "distinct call")
    built = f"cmake -S {home} -B {home}/build -DPYTHON=$(which python) && cmake --build {home}/build"
    click.echo(f"{len(plan.signatures) - len(left_out)} of {calls}; build: {built}", err=True)
    if left_out:
        raise StepFailed(
            listed(f"{plural(len(left_out), 'call')} left out", left_out),
            location=home,
            fix="record with an execution trace, or replay first and name the replay's folder",
        )


def _home_of(source: Path) -> Path:
    from lab.core.run import Run

    if source.is_dir() and Run.is_run(source):
        return source / "cpp"
    return Path("experiments") / f"{source.resolve().name.split('.')[0]}_cpp"


@click.command("energy")
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--from", "start", required=True, metavar="TIME", help="Begin of the window, as the log writes it."
)
@click.option("--to", "end", required=True, metavar="TIME", help="End of the window.")
@click.option("--gpu", help="One GPU of the log, by its index or UUID as written.")
@click.option(
    "--idle",
    "idle_w",
    type=Finite(min=0),
    metavar="W",
    help="Idle power to subtract; otherwise that of the log outside the window. 0: gross energy.",
)
@as_json("The energies")
def energy_of_log(
    log: Path, start: str, end: str, gpu: str | None, idle_w: float | None, as_json: bool
) -> None:
    """Integrate the power log LOG over a window, with bounds, idle power subtracted.

    Reads nvidia-smi CSV (with or without units) and dmon, amd-smi and rocm-smi, and timestamp,gpu,power_w.
    Exit code 1 where the log cannot answer: a gap, a sensor that does not move, a clock set back, unknown
    idle power.
    """
    import msgspec

    from lab.errors import StepFailed, not_here
    from lab.power.energy import energy_of
    from lab.power.readings import read_power_log, select_gpu, window_of

    if not log.is_file():
        raise not_here("no such power log", log)
    series = read_power_log(log)
    window = window_of(start, end, series)
    energies = [energy_of(readings, *window, idle_w) for readings in select_gpu(series, gpu, log)]
    if as_json:
        answer: Any = (
            energies[0] if len(energies) == 1 else {"gpus": energies, "problems": _problems(energies)}
        )
        click.echo(msgspec.json.encode(answer).decode())
    else:
        for energy in energies:
            click.echo(_sentence(energy))
    if problems := _problems(energies):
        raise StepFailed(f"no energy: {problems[0]}", location=log)


def _problems(energies: Sequence[Energy]) -> list[str]:
    return [problem for energy in energies for problem in energy.problems]


def _sentence(energy: Energy) -> str:
    name = f"GPU {energy.gpu}: " if energy.gpu else ""
    if energy.energy_j is None:
        gross = f"; gross {energy.gross_j:.1f} J" if energy.gross_j is not None else ""
        return f"{name}no energy over {energy.seconds:.2f} s: {'; '.join(energy.problems)}{gross}"
    return (
        f"{name}{energy.energy_j:.1f} J ({energy.low_j:.1f} to {energy.high_j:.1f}) above idle over "
        f"{energy.seconds:.2f} s; gross {energy.gross_j:.1f} J, {energy.mean_w:.1f} W on average, idle "
        f"{energy.idle_w:.1f} W; {energy.samples} readings"
    )
