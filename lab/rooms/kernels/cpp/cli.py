"""`lab kernels cpp`."""

from __future__ import annotations

from pathlib import Path

import click

from lab.rooms.kernels.options import RANK, SOURCE
from lab.terminal.options import out


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
    from lab.rooms.kernels.replay.args import ReplayPlan
    from lab.rooms.kernels.replay.calls.source import read_source
    from lab.rooms.kernels.replay.files import PLAN_FILE, RAW_FILE, RawReplay, is_replay
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
