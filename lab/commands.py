"""The commands that belong to no room."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from lab import images as image_data
from lab import images_cli
from lab.analysis import analyse
from lab.cli import COMMANDS, ROOM_COMMANDS, RUN_COMMANDS, Decorator, LazyGroup, with_options
from lab.console import Console
from lab.core.manifest import Manifest
from lab.core.run import Run, list_runs
from lab.core.step import Status
from lab.drive import resume, stop_run
from lab.engines.gpus import discover
from lab.engines.slurm_ask import Ask
from lab.errors import LabError, MissingError, StepFailed, UsageError
from lab.show import raise_for_findings, show_findings
from lab.survey import Options

PLACE: list[Decorator] = [
    click.option(
        "--image", metavar="NAME", help="Run in this image: cuda, pascal, rocm70 or cpu. [default: here]"
    ),
    click.option(
        "--engine",
        type=click.Choice(["local", "docker", "slurm"]),
        help="[default: docker with --image, else local]",
    ),
]
SLURM: list[Decorator] = [
    click.option("--partition", help="[Slurm] Where to queue the steps. [default: the site's]"),
    click.option("--account", help="[Slurm] Who pays."),
    click.option("--qos", help="[Slurm] Quality of service."),
    click.option("--constraint", help="[Slurm] Features that a node must have."),
    click.option("--time", "time_min", type=click.IntRange(min=1), help="[Slurm] Limit of a job, min. [default: the step's and 10]"),
    click.option("--cpus-per-task", type=click.IntRange(min=1), help="[Slurm] CPUs on each node."),
    click.option("--mem", help="[Slurm] Memory on each node, as 64G."),
    click.option("--gres", help="[Slurm] In place of gpu:N, as gpu:h100:8."),
    click.option("--sbatch", "extra", multiple=True, metavar="KEY=VALUE", help="[Slurm] Any other option of sbatch."),
    click.option("--container", type=click.Choice(["none", "docker", "pyxis", "apptainer"]), default="none",
                 help="[Slurm] How a node runs the --image. [default: none]"),
    click.option("--vendor", type=click.Choice(["nvidia", "amd", "none"]), help="[Slurm] Of the nodes' GPUs, without --image."),
    click.option("--detach", is_flag=True, help="[Slurm] Submit and return; a job after the steps collects and analyses."),
]  # fmt: skip
KNOBS: list[Decorator] = [
    click.option("--gpus", default="all", show_default=True, help="all, none, a count, 0,2 or 0-3, or UUIDs."),
    click.option("-j", "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Steps at a time."),
    click.option("-n", "--dry-run", is_flag=True, help="Print exactly what would run, and run nothing."),
    click.option("--json", "as_json", is_flag=True, help="Results (or the plan) as JSON on stdout."),
    click.option("-o", "--output-dir", type=click.Path(path_type=Path), help="Run folder. [default: experiments/ROOM_TIME]"),
    click.option("--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), help="Limit of a step, s."),
    click.option("--stall-timeout", "stall_timeout_s", type=click.FloatRange(min=0, min_open=True),
                 help="Stop a step that prints nothing for so long, s."),
    click.option("--analysis", type=click.Choice(["auto", "host", "none"]), default="auto", show_default=True,
                 help="Where to analyse after the steps; auto: in the cpu image if they ran in containers, else here."),
    click.option("--no-analysis", "analysis", flag_value="none", help="Same as --analysis none."),
    click.option("--wait/--no-wait", default=True, help="Wait for GPUs that another process holds. [default: yes]"),
    click.option("-q", "--quiet", is_flag=True, help="Hide the steps' own output."),
]  # fmt: skip


def _options(as_json: bool, **flags: Any) -> Options:
    asked = {name: flags.pop(name) for name in Ask.__struct_fields__ if name in flags}
    if flags.get("engine") == "slurm":
        return Options(json=as_json, slurm=Ask(**asked), **flags)
    theirs = {**asked, **{name: flags.get(name) for name in ("detach", "vendor")}}
    given = [name for name, value in theirs.items() if value not in (None, (), "none", False)]
    if given:
        option = {"time_min": "time", "extra": "sbatch"}.get(given[0], given[0]).replace("_", "-")
        raise UsageError(f"--{option} is an option of the slurm engine", fix="add --engine slurm")
    return Options(json=as_json, **flags)


def _run(ctx: click.Context, /, resume_run: Path | None, attach_run: Path | None, **flags: Any) -> None:
    """Run a room's experiment: plan, execute, analyse, report.

    \b
    lab run sweep -c 28,42 -t 256 --ranks 2              here, in this environment
    lab run --image rocm70 sweep -c 28,42,56,70          in a container, on its GPUs
    lab run --dry-run --json --image cuda nixnan baseline
    lab run --resume experiments/sweep_20260101_120000   only what is missing or failed
    lab run --attach experiments/sweep_20260101_120000   take up containers whose driver was killed, then go on
    """
    ctx.obj = _options(**flags)
    earlier = resume_run or attach_run
    if resume_run and attach_run:
        raise UsageError(
            "--resume and --attach name a run each", fix="--resume alone also takes up living containers"
        )
    if earlier is not None:
        if ctx.invoked_subcommand:
            raise UsageError("--resume and --attach take their experiment from the run folder",
                             fix=f"drop {ctx.invoked_subcommand!r}")  # fmt: skip
        resume(earlier, ctx.obj, attach=attach_run is not None)
    elif not ctx.invoked_subcommand:
        raise UsageError(
            "name an experiment to run", fix=f"one of: {', '.join(ROOM_COMMANDS)}, or --resume RUN"
        )


EARLIER: list[Decorator] = [
    click.option("--resume", "resume_run", type=click.Path(path_type=Path), metavar="RUN",
                 help="Run what is missing or failed of this run."),
    click.option("--attach", "attach_run", type=click.Path(path_type=Path), metavar="RUN",
                 help="Take up this run's containers, whose driver was killed, then go on with it."),
]  # fmt: skip

_ROOMS = {name: RUN_COMMANDS.get(name) or COMMANDS[name] for name in ROOM_COMMANDS}
run = click.group("run", cls=LazyGroup, lazy=_ROOMS, invoke_without_command=True)(
    click.pass_context(with_options(*PLACE, *KNOBS, *SLURM, *EARLIER)(_run))
)


def standalone(command: click.Command) -> click.Command:
    """The room's command with the run's own flags, for an environment that is already right (no image, no engine)."""
    if isinstance(command, click.Group):
        parts = {name: standalone(part) for name, part in command.commands.items()}
        return click.Group(command.name, commands=parts, help=command.help)
    carrier = click.command("carrier")(with_options(*KNOBS)(lambda **_: None))
    own = {param.name for param in command.params}  # a flag of the command's own means what the command says
    params = [param for param in carrier.params if param.name not in own]
    mine = {param.name for param in params}

    def callback(**values: Any) -> Any:
        ctx = click.get_current_context()
        ctx.obj = _options(**{name: values.pop(name) for name in mine})
        return ctx.invoke(command, **values)

    return click.Command(
        command.name, params=[*command.params, *params], callback=callback, help=command.help
    )


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Where tables, figures and page go. [default: the run; for a recording, experiments/NAME_analysis]",
)
@click.option("--json", "as_json", is_flag=True, help="Findings as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def analyze(folder: Path, out: Path | None, as_json: bool, quiet: bool) -> None:
    """Analyse a run, or a recording that lab did not make. The recording itself is never changed."""
    if not folder.exists():
        raise MissingError("no such folder", where=folder, fix="see `lab runs list`")
    findings = analyse(folder, out, Console(quiet=quiet))
    show_findings(folder, findings, Options(json=as_json))
    raise_for_findings(findings, folder)


@click.group()
def runs() -> None:
    """List, show, stop and clean up runs."""


@runs.command("list")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("experiments"))
@click.option("--json", "as_json", is_flag=True)
def runs_list(folder: Path, as_json: bool) -> None:
    """One line a run under FOLDER (default: experiments)."""
    found = list_runs(folder)
    if as_json:
        rows = [
            {"folder": str(path), "error": str(m)}
            if isinstance(m, LabError)
            else {"folder": str(path), "room": m.room, "created_utc": m.created_utc, "steps": _counts(m)}
            for path, m in found
        ]
        click.echo(msgspec.json.encode(rows).decode())
        return
    for path, manifest in found:
        if isinstance(manifest, LabError):
            click.echo(f"{path}  unreadable: {manifest.what}")
        else:
            image = manifest.image.name if manifest.image else manifest.engine
            click.echo(f"{path}  {manifest.created_utc[:19]}  {image}  {_counts_text(manifest)}")
    if not found:
        click.echo(f"no runs under {folder}", err=True)


@runs.command("stop")
@click.argument("folder", type=click.Path(path_type=Path))
def runs_stop(folder: Path) -> None:
    """End a run from outside: its driver as Ctrl-C would, then every container it left. It can be resumed."""
    stop_run(folder, Console())


@runs.command("reap")
@click.option("--running", is_flag=True, help="Those too that still run.")
@click.option("--slurm-job", metavar="ID", help="Only those of this job, running or not: for an Epilog.")
@click.option("--json", "as_json", is_flag=True)
def runs_reap(running: bool, slurm_job: str | None, as_json: bool) -> None:
    """Remove the containers of lab whose driver is dead and whose result nobody will collect."""
    from lab.engines.docker_leftovers import reap

    removed = reap(running=running, slurm_job=slurm_job)
    if as_json:
        click.echo(msgspec.json.encode(removed).decode())
        return
    for one in removed:
        click.echo(f"removed {one.name} ({one.state}, run {one.run_dir}, step {one.step})")
    click.echo(f"{len(removed)} removed", err=True)


@runs.command("show")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The manifest itself.")
def runs_show(folder: Path, as_json: bool) -> None:
    """What a run is, and what became of its steps."""
    manifest = Run.open(folder).manifest
    if as_json:
        click.echo(msgspec.json.encode(manifest).decode())
        return
    click.echo(f"{manifest.id}: room {manifest.room}, {manifest.kind.value}, {manifest.created_utc}")
    click.echo(
        f"engine {manifest.engine}, image {manifest.image.ref if manifest.image else 'none'}, "
        f"lab {manifest.lab.version} {manifest.lab.commit or ''}"
    )
    for gpu in manifest.gpus:
        click.echo(f"GPU {gpu.index}: {gpu.name} {gpu.uuid} driver {gpu.driver}")
    for record in manifest.steps:
        outcome = record.outcome
        state = (
            f"{outcome.status.value:12} {outcome.seconds:8.1f} s  {outcome.reason}"
            if outcome
            else "running or killed"
            if record.attempts
            else "planned"
        )
        click.echo(f"  {record.step.name:24} {state}".rstrip())


@click.group()
def images() -> None:
    """List, show, build and check images."""


images_cli.register(images)


@images.command("list")
@click.option("--json", "as_json", is_flag=True)
def images_list(as_json: bool) -> None:
    """One line an image, and whether the engine here holds it."""
    loaded = [image_data.load(name) for name in image_data.names()]
    have = [images_cli.state(image) for image in loaded]
    if as_json:
        rows = [{**msgspec.to_builtins(image), "built": ids} for image, ids in zip(loaded, have, strict=True)]
        click.echo(msgspec.json.encode(rows).decode())
        return
    for image, ids in zip(loaded, have, strict=True):
        state = "built" if ids and all(ids.values()) else "partly" if ids and any(ids.values()) else "-"
        click.echo(f"{image.name:8} {image.vendor:7} {image.ref:14} {state:6} {image.summary}")


@images.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True)
def images_show(name: str, as_json: bool) -> None:
    """All that is said of one image."""
    image = image_data.load(name)
    text = msgspec.json.encode(image)
    click.echo(text.decode() if as_json else msgspec.json.format(text, indent=2).decode())


@click.command()
@click.option("--json", "as_json", is_flag=True)
def doctor(as_json: bool) -> None:
    """Say what this machine offers: GPUs, engine, packages, disk. Exit code 0: a local run works here."""
    checks = _checks()
    if as_json:
        click.echo(
            msgspec.json.encode(
                [{"what": what, "state": state, "detail": text} for what, state, text in checks]
            ).decode()
        )
    else:
        for what, state, text in checks:
            click.echo(f"{state:5} {what:10} {text}")
    if any(state == "bad" for _, state, _ in checks):
        raise StepFailed("this machine cannot run lab as it is", fix="mend the lines marked bad")


def _checks() -> list[tuple[str, str, str]]:
    return [
        _check_python(),
        *(_check_package(*row) for row in PACKAGES),
        *_check_gpus(),
        _check_docker(),
        _check_disk(),
    ]


PACKAGES = (("numpy", "analysis"), ("pandas", "analysis"), ("matplotlib", "analysis"), ("torch", "workload"),
            ("triton", "workload"), ("transformers", "workload"), ("docker", "host"))  # fmt: skip


def _check_python() -> tuple[str, str, str]:
    good = sys.version_info >= (3, 10)
    return (
        "python",
        "ok" if good else "bad",
        sys.version.split()[0] + ("" if good else ": lab needs 3.10 or newer"),
    )


def _check_package(name: str, extra: str) -> tuple[str, str, str]:
    try:
        return name, "ok", importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return name, "-", f"not installed (pip install 'lab[{extra}]')"


def _check_gpus() -> list[tuple[str, str, str]]:
    try:
        gpus = discover()
    except LabError as error:
        return [("gpu", "bad", str(error))]
    if not gpus:
        return [("gpu", "-", "none found: runs here use the CPU")]
    return [
        ("gpu", "ok", f"{g.index} {g.name} {g.uuid} driver {g.driver} {(g.mem_bytes or 0) / 2**30:.0f} GiB")
        for g in gpus
    ]


def _check_docker() -> tuple[str, str, str]:
    socket = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    path = Path(socket.removeprefix("unix://"))
    if not socket.startswith("unix://"):
        return "engine", "-", f"DOCKER_HOST={socket}: remote engines are not used"
    if not path.exists():
        return "engine", "-", f"no Docker engine at {path}: runs with --image need one"
    return (
        "engine",
        "ok" if os.access(path, os.W_OK) else "-",
        str(path) if os.access(path, os.W_OK) else f"{path} is not yours to use: join the group docker",
    )


def _check_disk() -> tuple[str, str, str]:
    free = shutil.disk_usage(".").free
    return "disk", "ok" if free > 2**30 else "bad", f"{free / 2**30:.1f} GiB free here"


def _counts(manifest: Manifest) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in manifest.steps:
        word = record.outcome.status.value if record.outcome else "planned"
        counts[word] = counts.get(word, 0) + 1
    return counts


def _counts_text(manifest: Manifest) -> str:
    counts = _counts(manifest)
    done = counts.get(Status.ok.value, 0) + counts.get(Status.skipped.value, 0)
    rest = ", ".join(f"{n} {word}" for word, n in counts.items() if word not in ("ok", "skipped"))
    return f"{manifest.room}: {done}/{len(manifest.steps)} done" + (f", {rest}" if rest else "")
