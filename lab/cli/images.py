"""`lab images`: list, build, check, smoke."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

import click
import msgspec

from lab.cli.registry import ROOMS, smoke_runs
from lab.core.gpu import Gpu
from lab.engines.docker.host import smoke_box
from lab.errors import EngineError, GpuError, StepFailed
from lab.gpus.discover import discover
from lab.images import build as imagebuild
from lab.images import check as imagecheck
from lab.images import smoke as imagesmoke
from lab.images import spec
from lab.images.docker_cli import id_of, listed
from lab.images.foreign import check_reference, is_reference
from lab.images.targets import targets_of
from lab.terminal.console import Console
from lab.terminal.group import Group
from lab.terminal.options import as_json, print_json, quiet


@click.group(cls=Group)
def images() -> None:
    """List, build and check images."""


@images.command("list")
@as_json("One object per image")
def images_list(as_json: bool) -> None:
    """One line per image: whether the engine here has it. `lab images check` looks inside."""
    try:
        ids = listed()
    except EngineError as error:
        ids = None
        Console().say(f"note: which images are here is not known: {error.problem}; see lab doctor")
    rows = []
    for image in map(spec.load, spec.names()):
        targets = targets_of(image)
        built = None if ids is None else {target.ref: id_of(target.ref, ids) for target in targets}
        rows.append(msgspec.to_builtins(image) | {"built": built})
    if as_json:
        print_json(rows)
    for row in () if as_json else rows:
        state = _state(row["built"])
        click.echo(f"{row['name']:8} {row['vendor']:7} {row['ref']:20} {state:7} {row['summary']}")


def _state(built: dict[str, str | None] | None) -> str:
    if built is None:
        return "unknown"
    return "built" if all(built.values()) else "partly" if any(built.values()) else "absent"


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
    gpus: Sequence[Gpu] = ()
    with contextlib.suppress(GpuError):
        gpus = discover()
    needs = {room.name: room.needs for room in ROOMS}
    references = [name for name in names if is_reference(name)]
    of_lab = tuple(name for name in names if name not in references)
    rows = [row for ref in references for row in check_reference(ref, vendor, gpus, needs)]
    checks = imagecheck.check(of_lab) if of_lab or not references else ()
    show_rows((*rows, *checks) if references else checks, None if as_json else click.echo)


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
