"""`lab setup`: bring the one image that this machine needs, try it, say what to type next; `lab images`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
import msgspec

import lab
from lab.cli.registry import ROOMS, smoke_runs
from lab.core.gpu import Gpu
from lab.engines.docker.host import smoke_box
from lab.engines.docker.which_lab import lab_difference
from lab.errors import EngineError, GpuError, StepFailed, needs
from lab.gpus.cdi import read_cdi, with_cdi_names
from lab.gpus.discover import Found, discover, look
from lab.gpus.health import Check
from lab.gpus.nvidia import cards_without_driver
from lab.images import acquire, spec
from lab.images import build as imagebuild
from lab.images import check as imagecheck
from lab.images import smoke as imagesmoke
from lab.images.acquire import Way
from lab.images.docker_cli import ANSWER_S, endpoint_of, engine_cli, id_of, listed
from lab.images.foreign import check_reference, is_reference
from lab.images.preflight import fitting_images, suits
from lab.images.spec import load
from lab.images.targets import ROOT, Target, is_tree, targets, targets_of
from lab.terminal.console import Console
from lab.terminal.group import Group
from lab.terminal.options import as_json, print_json, quiet

SEE = "see lab doctor"


@click.command()
@click.argument("image", required=False)
@click.option(
    "--registry", metavar="HOST/OWNER", help=f"Where images are published.  [default: ${acquire.REGISTRY}]"
)
@click.option(
    "--release",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The images.json of a release: images by digest.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be pulled or built, and do nothing.")
@quiet("Hide the builder's own output.")
def setup(image: str | None, registry: str | None, release: Path | None, dry_run: bool, quiet: bool) -> None:
    """Get the image that this machine's GPUs need, and lab/cpu for analyses; try them; say what is next.

    An image that is here is kept. Otherwise it is pulled from a release or a registry that you name, or built
    from this checkout. Nothing else in lab pulls images.
    """
    console = Console(quiet=quiet)
    gpus, notes, _ = _gpus(image)
    for note in notes:
        console.say(f"note: {note}")
    if image is None:
        if not gpus and (cards := cards_without_driver(os.environ)):
            console.say(f"note: {cards}: this prepares runs on the CPU; install it, then lab setup again")
        image = image_for(gpus)
        for gpu in gpus:
            verb = "fits" if image in fitting_images(gpu) else "does not fit"
            console.say(f"note: {image} {verb} GPU {gpu.number} ({gpu.name})")
    asked = targets([image])
    image = asked[0].image  # of a target such as cpu-torch
    suited = [gpu for gpu in gpus if suits(load(image), gpu)][:1]
    if not suited and load(image).vendor != "none":
        console.say(f"note: no GPU here fits the image {image}: it is tried without one")
    unreachable = _look_at_engine(suited, console)
    wanted = list({target.name: target for target in (*asked, *targets(["cpu"])[:1])}.values())
    ways = _ways(wanted, acquire.registry_given(registry), release)
    if not dry_run:
        for target, way in zip(wanted, ways, strict=True):
            _bring(target, way, console)
        # lab starts in each image, as the caller, without network or rights, and sees the GPU it is given.
        box = smoke_box(() if unreachable else suited)
        show_rows(imagesmoke.smoke([target.name for target in wanted], {}, box=box), console.say)
    for way in ways:
        click.echo(f"{way.action:5} {way.target} {way.ref}".rstrip())
    present = [t for t, way in zip(wanted, ways, strict=True) if way.action == "here" or not dry_run]
    if differences := [difference for target in present if (difference := lab_difference(target))]:
        if not dry_run:
            same_release = "install the wheel of the images' release; or lab run --host-lab mount"
            raise StepFailed("; ".join(differences), fix=None if is_tree(ROOT) else same_release)
        for difference in differences:
            console.say(f"note: {difference}")
    if unreachable:
        raise StepFailed(
            f"the GPUs do not reach containers: {unreachable.detail}", fix=unreachable.fix or SEE
        )
    ranks = " --ranks 2" if image == "cpu" else ""
    click.echo(f"next: lab run --image {image} sweep -c 28,42{ranks}")


def _gpus(image: str | None) -> Found:
    """This host's GPUs, unless an image without GPUs is asked for, which a broken driver does not concern."""
    if image is not None and load(targets([image])[0].image).vendor == "none":
        return Found([])
    gpus, notes, dead = look()
    return Found(with_cdi_names(gpus, read_cdi()), notes, dead)


def _look_at_engine(gpus: Sequence[Gpu], console: Console) -> Check | None:
    """-> why containers would not get these GPUs, if so. Raises EngineError for an unusable engine."""
    with needs("host"):
        from lab.engines.docker.health import check_engine
    checks = {check.subject: check for check in check_engine(os.environ, gpus, round(ANSWER_S))}
    engine = checks["engine"]
    if engine.state != "ok":
        raise EngineError(engine.detail, fix=engine.fix or SEE)
    for check in checks.values():
        state = "note: " if check.state == "warn" else ""
        console.detail(f"{state}{check.subject}: {check.detail}")
    access = checks.get("gpu access")
    return access if access and access.state != "ok" else None


def image_for(gpus: Sequence[Gpu]) -> str:
    """The image that fits most of the GPUs with their drivers, the first on a tie; cpu without a GPU."""
    if not gpus:
        return "cpu"
    fitting = [name for gpu in gpus for name in fitting_images(gpu)]
    if not fitting:
        names = ", ".join(
            f"{gpu.name} ({gpu.vendor} {gpu.arch or 'of unknown architecture'}, driver "
            f"{gpu.driver or 'unknown'})"
            for gpu in gpus
        )
        raise GpuError(
            f"no image fits {names}",
            fix="lab doctor says why not; lab setup cpu works without the GPU",
        )
    return max(fitting, key=fitting.count)


def _ways(wanted: Sequence[Target], registry: str | None, release: Path | None) -> list[Way]:
    ids, cli = listed(), engine_cli() or ()
    named = acquire.read_release(release) if release else None
    return [
        acquire.choose(
            target,
            local_version=_version_here(cli, target) if id_of(target.ref, ids) else None,
            registry=registry,
            release=named,
            has_tree=is_tree(ROOT),
        )
        for target in wanted
    ]


def _version_here(cli: Sequence[str], target: Target) -> str:
    """The version of lab in the image; an installed lab is also compared by content, as runs do."""
    version = acquire.version_of(cli, target.ref)
    if is_tree(ROOT) or version != lab.__version__ or lab_difference(target) is None:
        return version
    return f"{version} with other content"


def _bring(target: Target, way: Way, console: Console) -> None:
    if way.action == "pull":
        console.say(f"pulling {way.ref}")
        console.say(f"✓ {target.ref} is {acquire.pull(engine_cli() or (), way, target, console.detail)}")
    elif way.action == "build":
        for built in imagebuild.build([target.name], base=None, say=console.detail):
            console.say(f"✓ {built.ref}: built in {built.seconds:.1f} s")
        if id_of(target.ref, listed()) is None:
            raise EngineError(
                f"{target.ref} was built, but not by the engine at {endpoint_of(os.environ)}, which runs use",
                fix=f"docker save {target.ref} | podman load",
            )


# `lab images`: list, build, check, smoke.


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
