"""`lab images`: list, build, check, smoke."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click
import msgspec

from lab.cli.registry import smoke_runs
from lab.core.provenance import lab_with_content
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.which_lab import lab_inside
from lab.errors import EngineError, LabError, StepFailed
from lab.images import build as imagebuild
from lab.images import compare, spec
from lab.images.acquire import labels_of
from lab.images.docker_cli import ANSWER_S, engine_cli, id_of, listed
from lab.images.endpoint import endpoint_of
from lab.images.spec import Image
from lab.images.targets import Target, targets_of
from lab.terminal.console import Console
from lab.terminal.group import Group
from lab.terminal.options import as_json, option, quiet

if TYPE_CHECKING:
    from lab.images.check import Row


@click.group(cls=Group)
def images() -> None:
    """List, build and check images."""


@images.command("list")
@as_json("One object per image")
def images_list(as_json: bool) -> None:
    """One line per image: whether the engine here has it, and whether the lab in it is this one.

    Exit code 1 if an image holds another lab; what to type then is said.
    """
    rows = [(image, *_on_engine(image, ids)) for ids in [_listed()] for image in map(spec.load, spec.names())]
    if as_json:
        objects = [
            {**msgspec.to_builtins(image), "built": built, "differences": differences}
            for image, built, differences in rows
        ]
        click.echo(msgspec.json.encode(objects).decode())
    for image, built, differences in () if as_json else rows:
        state = "differs" if differences else _state(built)
        click.echo(f"{image.name:8} {image.vendor:7} {image.ref:20} {state:7} {image.summary}")
    if differences := [difference for row in rows for difference in row[2]]:
        raise StepFailed("; ".join(differences))


@images.command("build")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--base", metavar="REF", help="Build on this image instead of the one image.toml names.")
@click.option(
    "--build-arg",
    "build_args",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of the Dockerfile; NSYS_PACKAGE= builds cuda without Nsight Systems.",
)
@option("--network", default="host", help="Network of the build's own commands.")
@click.option("-n", "--dry-run", "dry_run", is_flag=True, help="Print the commands, and build nothing.")
@as_json("What was built (or the plan)")
@quiet("Hide the builder's own output.")
def build(
    names: tuple[str, ...],
    base: str | None,
    build_args: tuple[str, ...],
    network: str,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Build images, all or the named ones: one wheel of this tree in each.

    \b
    lab images build cpu                                      lab/cpu (analysis) and lab/cpu-torch (workloads)
    lab images build cpu-torch                                only that one
    lab images build cpu --base local/debian-python:bookworm  on a base that scripts/base-image.sh made
    """
    if dry_run:
        _show_plan(imagebuild.plan(names, base=base, network=network, build_args=build_args), as_json)
        return
    console = Console(quiet=quiet)
    built = []
    for image in imagebuild.build(
        names, base=base, network=network, build_args=build_args, say=console.detail
    ):
        console.say(
            f"✓ {image.ref}: {image.size_bytes / 1e6:.0f} MB in {image.seconds:.1f} s, {image.id[7:19]}"
        )
        built.append(image)
    if as_json:
        click.echo(msgspec.json.encode(built).decode())


def _show_plan(rows: list[dict[str, object]], as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(rows).decode())
        return
    for row in rows:
        env = " ".join(f"{name}={value}" for name, value in dict(row["env"]).items())  # type: ignore[call-overload]
        note = f"  note: {row['note']}" if row["note"] else ""
        wheels = f"  the host's pip: {', '.join(row['wheels'])}" if row["wheels"] else ""  # type: ignore[arg-type]
        click.echo(f"{row['ref']} on {row['base']}\n  {env} {shlex.join(row['argv'])}".rstrip())  # type: ignore[arg-type]
        for line in filter(None, (wheels, note)):
            click.echo(line)


@images.command("check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@as_json("One object per check")
def check(names: tuple[str, ...], as_json: bool) -> None:
    """Check images' data, Dockerfiles and locks, and whatever of them is built here.

    A built image is run as a stranger: unknown user, read-only, no network. Exit code 0: nothing failed.
    """
    from lab.images import check as imagecheck

    _show_rows(imagecheck.check(names), as_json)


@images.command("smoke")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--stand-in", is_flag=True, help="With stand-ins for GPUs, which the engine must know how to give."
)
@option("--timeout", "timeout_s", default=300.0, help="Time limit of one command, s.")
@as_json("One object per command")
def smoke(names: tuple[str, ...], stand_in: bool, timeout_s: float, as_json: bool) -> None:
    """Run lab's commands, a small sweep and a NaN baseline on the CPU, or an analysis, inside built images.

    Each container gets what `lab run` would give it. Exit code 0: all of it ran.
    """
    from lab.engines.docker.client import Nature, ask
    from lab.images import smoke as imagesmoke

    nature = ask(endpoint_of(os.environ), ANSWER_S) or Nature()
    box = imagesmoke.Box(nature.user_mapping, nature.cdi)
    rows = imagesmoke.smoke(names, smoke_runs(), stand_in=stand_in, timeout_s=timeout_s, box=box)
    _show_rows(rows, as_json)


def _show_rows(results: Iterable[Row], as_json: bool) -> None:
    rows = []
    for row in results:
        rows.append(row)
        if not as_json:
            click.echo(f"{row.state:8} {row.image:10} {row.check:11} {row.detail}".rstrip())
    if as_json:
        click.echo(msgspec.json.encode(rows).decode())
    failed = [f"{row.image}: {row.check}" for row in rows if row.state == "failed"]
    if failed:
        raise StepFailed(f"{len(failed)} of {len(rows)} checks failed: {', '.join(failed)}")


def lab_difference(target: Target) -> str | None:
    """Say how the lab in the image of `target` on the engine differs from this one; None if it does not."""
    engine = DockerEngine(spec.load(target.image))
    record = engine.image_record(target.ref)
    inside = lab_inside(engine.daemon(), str(record.id), engine.image.python)
    labels = labels_of(engine_cli() or (), target.ref)
    return compare.lab_difference(target, labels, inside.version, inside.sha256, lab_with_content())


def _listed() -> dict[str, str] | None:
    """Reference -> id of the images on the engine; None, with a note, if none answers."""
    try:
        return listed()
    except EngineError as error:
        Console().say(f"note: which images are here is not known: {error.problem}; see lab doctor")
        return None


def _on_engine(image: Image, ids: Mapping[str, str] | None) -> tuple[dict[str, str | None] | None, list[str]]:
    """-> (reference -> id here, or None, of all that the image needs), and where the lab inside differs."""
    if ids is None:
        return None, []
    targets = targets_of(image)
    built = {target.ref: id_of(target.ref, ids) for target in targets}
    differences = []
    for target in (target for target in targets if built[target.ref]):
        try:
            difference = lab_difference(target)
        except LabError as error:
            difference = f"{target.ref}: {error.problem}"
        differences += [difference] if difference else []
    return built, differences


def _state(ids: Mapping[str, str | None] | None) -> str:
    if ids is None:
        return "?"
    return "built" if all(ids.values()) else "partly" if any(ids.values()) else "-"
