"""`lab images`: list, build, check, smoke."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

import click
import msgspec

from lab.cli.registry import room_needs, smoke_runs
from lab.core.gpu import Gpu
from lab.core.provenance import lab_with_content
from lab.engines.docker.client import Nature, ask
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.which_lab import lab_inside
from lab.errors import EngineError, GpuError, LabError, StepFailed
from lab.gpus.amd import device_gids
from lab.gpus.discover import discover
from lab.images import build as imagebuild
from lab.images import check as imagecheck
from lab.images import compare, spec
from lab.images import smoke as imagesmoke
from lab.images.acquire import labels_of
from lab.images.docker_cli import ANSWER_S, engine_cli, id_of, listed
from lab.images.endpoint import endpoint_of
from lab.images.foreign import check_reference, is_reference
from lab.images.targets import Target, targets_of
from lab.terminal.console import Console
from lab.terminal.group import Group
from lab.terminal.options import as_json, print_json, quiet


@click.group(cls=Group)
def images() -> None:
    """List, build and check images."""


@images.command("list")
@as_json("One object per image")
def images_list(as_json: bool) -> None:
    """One line per image: whether the engine here has it, and whether the lab in it is this one.

    Another lab in an image is noted; `lab images check` exits 1 for it.
    """
    try:
        ids = listed()
    except EngineError as error:
        ids = None
        Console().say(f"note: which images are here is not known: {error.problem}; see lab doctor")
    rows = []
    for image in map(spec.load, spec.names()):
        targets = targets_of(image)
        built = None if ids is None else {target.ref: id_of(target.ref, ids) for target in targets}
        texts = [_difference(target) for target in targets if built and built[target.ref]]
        row = {"built": built, "differences": [text for text in texts if text]}
        rows.append(msgspec.to_builtins(image) | row)
    if as_json:
        print_json(rows)
    for row in () if as_json else rows:
        state = "differs" if row["differences"] else _state(row["built"])
        click.echo(f"{row['name']:8} {row['vendor']:7} {row['ref']:20} {state:7} {row['summary']}")
        for text in row["differences"]:
            click.echo(f"note: {text}", err=True)


def _state(built: dict[str, str | None] | None) -> str:
    if built is None:
        return "unknown"
    return "built" if all(built.values()) else "partly" if any(built.values()) else "absent"


def _difference(target: Target) -> str | None:
    try:
        return lab_difference(target)
    except LabError as error:
        return f"{target.ref}: {error.problem}"


def lab_difference(target: Target) -> str | None:
    """Say how the lab in the image of `target` on the engine differs from this one; None if it does not."""
    engine = DockerEngine(spec.load(target.image))
    record = engine.image_record(target.ref)
    inside = lab_inside(engine.daemon(), str(record.id), engine.image.python)
    labels = labels_of(engine_cli() or (), target.ref)
    return compare.lab_difference(target, labels, inside.version, inside.sha256, lab_with_content())


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
@click.option("-n", "--dry-run", is_flag=True, help="Print the commands, and build nothing.")
@quiet("Hide the builder's own output.")
def build(
    names: tuple[str, ...], base: str | None, build_args: tuple[str, ...], dry_run: bool, quiet: bool
) -> None:
    """Build images, all or the named ones: one wheel of this tree in each.

    \b
    lab images build cpu                                      lab/cpu (analysis) and lab/cpu-torch (workloads)
    lab images build cpu-torch                                only that one
    lab images build cpu --base local/debian-python:bookworm  on a base that scripts/base-image.sh made
    """
    if dry_run:
        click.echo("\n".join(imagebuild.plan(names, base=base, build_args=build_args)))
        return
    console = Console(quiet=quiet)
    for image in imagebuild.build(names, base=base, build_args=build_args, say=console.detail):
        console.say(
            f"✓ {image.ref}: {image.size_bytes / 1e6:.0f} MB in {image.seconds:.1f} s, {image.id[7:19]}"
        )


@images.command("check")
@click.argument("names", nargs=-1, metavar="[NAME|REF]...")
@click.option("--vendor", type=click.Choice(["nvidia", "amd", "none"]), help="Of an image by REF.")
@as_json("One object per check")
def check(names: tuple[str, ...], vendor: str | None, as_json: bool) -> None:
    """Check images' data, Dockerfiles and locks, and whatever of them is built here.

    Of any other image, by its reference, it says what lab can use and what each room would lack. A built
    image is run as a stranger: unknown user, read-only, no network. Exit code 0: nothing failed.
    """
    references = [name for name in names if is_reference(name)]
    own = tuple(name for name in names if name not in references)
    rows = [row for ref in references for row in check_reference(ref, vendor, _gpus_here(), room_needs())]
    checks = imagecheck.check(own) if own or not references else ()
    show_rows((*rows, *checks) if references else checks, None if as_json else click.echo)


def _gpus_here() -> Sequence[Gpu]:
    try:
        return discover()
    except GpuError as error:
        Console().say(f"note: GPUs are not judged: {error.problem}")
        return ()


@images.command("smoke")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--stand-in", is_flag=True, help="With stand-ins for GPUs, which the engine must know how to give."
)
@as_json("One object per command")
def smoke(names: tuple[str, ...], stand_in: bool, as_json: bool) -> None:
    """Run lab's commands, a small sweep and a NaN baseline on the CPU, or an analysis, inside built images.

    Each container gets what `lab run` would give it. Exit code 0: all of it ran.
    """
    rows = imagesmoke.smoke(names, smoke_runs(), stand_in=stand_in, box=smoke_box())
    show_rows(rows, None if as_json else click.echo)


def smoke_box(gpus: Sequence[Gpu] = ()) -> imagesmoke.Box:
    """These GPUs and the users of the engine here, to try images with."""
    nature = ask(endpoint_of(os.environ), ANSWER_S) or Nature()
    return imagesmoke.Box(nature.user_mapping, nature.cdi, tuple(gpus), device_gids(gpus))


def show_rows(checks: Iterable[imagecheck.Row], say: Callable[[str], None] | None) -> None:
    """Say each check as it ends, or print all as JSON. Raises StepFailed if one failed."""
    rows = []
    for row in checks:
        rows.append(row)
        if say:
            say(f"{row.state:8} {row.image:10} {row.check:11} {row.detail}".rstrip())
    if not say:
        print_json(rows)
    failed = [f"{row.image}: {row.check}" for row in rows if row.state == "failed"]
    if failed:
        raise StepFailed(f"{len(failed)} of {len(rows)} checks failed: {', '.join(failed)}")
