"""`lab kernels cpp`."""

from __future__ import annotations

from pathlib import Path

import click

from lab.rooms.kernels.options import RANK, SOURCE


@click.command("cpp")
@SOURCE
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the program. [default: cpp/ in a RUN, experiments/NAME_cpp else]",
)
@RANK
def cpp(source: Path, execution_trace: Path | None, out: Path | None, rank: int) -> None:
    """Write a C++ (libtorch) program that replays SOURCE: a profile's or a replay's RUN, or a trace.

    Build it with the CMake file or build.sh beside it; `./replay --cuda --repeats 50 --energy 5` prints the rows of
    replay.json: times, joules, and a checksum of every result.
    """
    from lab.core.run import Run
    from lab.errors import StepFailed
    from lab.rooms.kernels.cpp.generate import generate
    from lab.rooms.kernels.replay.args import ReplayPlan
    from lab.rooms.kernels.replay.files import PLAN_FILE, RAW_FILE, is_replay, read_file
    from lab.rooms.kernels.replay.raw import RawReplay
    from lab.rooms.kernels.replay.read import read_source

    raw = None
    if source.is_dir() and is_replay(source):
        plan = read_file(source / PLAN_FILE, ReplayPlan)
        raw = read_file(source / RAW_FILE, RawReplay) if (source / RAW_FILE).is_file() else None
    else:
        plan = read_source(source, execution_trace, None, rank)
    home = (
        source / "cpp"
        if source.is_dir() and Run.is_run(source)
        else Path("experiments") / f"{source.resolve().name.split('.')[0]}_cpp"
    )
    done = generate(plan, out or home, raw)
    for path in done.files:
        click.echo(str(path))
    click.echo(
        f"{done.calls} of {len(plan.signatures)} distinct calls; build: {out or home}/build.sh PYTHON",
        err=True,
    )
    if done.left_out:
        raise StepFailed(
            f"{len(done.left_out)} calls are left out:\n"
            + "\n".join(f"  {line}" for line in done.left_out[:20]),
            where=out or home,
            fix="record with an execution trace, or replay first and name the replay's folder",
        )
