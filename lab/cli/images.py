"""`lab images`: list, show, build, prepare, check, smoke, pin."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from lab.cli.registry import smoke_runs
from lab.errors import EngineError, StepFailed, UsageError
from lab.images import build as imagebuild
from lab.images import spec
from lab.images.docker_cli import ANSWER_S, id_of, listed
from lab.images.endpoint import endpoint_of
from lab.images.spec import Image
from lab.images.targets import targets_of
from lab.terminal.console import Console
from lab.terminal.group import Group
from lab.terminal.options import as_json, option, quiet

if TYPE_CHECKING:
    from lab.images.check import Row


@click.group(cls=Group)
def images() -> None:
    """List, show, build and check images."""


@images.command("list")
@as_json("One object per image")
def images_list(as_json: bool) -> None:
    """One line per image, and whether the Docker engine here has it."""
    loaded = [spec.load(name) for name in spec.names()]
    have = _built(loaded)
    if as_json:
        rows = [{**msgspec.to_builtins(image), "built": ids} for image, ids in zip(loaded, have, strict=True)]
        click.echo(msgspec.json.encode(rows).decode())
        return
    for image, ids in zip(loaded, have, strict=True):
        click.echo(f"{image.name:8} {image.vendor:7} {image.ref:20} {_state(ids):6} {image.summary}")


@images.command("show")
@click.argument("name")
@as_json("The same in one line,")
def images_show(name: str, as_json: bool) -> None:
    """Everything in one image's image.toml."""
    image = spec.load(name)
    text = msgspec.json.encode(image)
    click.echo(text.decode() if as_json else msgspec.json.format(text, indent=2).decode())


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
    done = []
    for image in imagebuild.build(
        names, base=base, network=network, build_args=build_args, say=console.detail
    ):
        console.say(
            f"✓ {image.ref}: {image.size_bytes / 1e6:.0f} MB in {image.seconds:.1f} s, {image.id[7:19]}"
        )
        done.append(image)
    if as_json:
        click.echo(msgspec.json.encode(done).decode())


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


@images.command("prepare")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--base", metavar="REF", help="Ask this image for its Python, instead of image.toml.")
@click.option("--resolve-base", is_flag=True, help="Name each base by the digest that its registry has now.")
@quiet("Hide pip's own output.")
def prepare(names: tuple[str, ...], base: str | None, resolve_base: bool, quiet: bool) -> None:
    """Make what a build reads (the wheel of lab, a torch for the CPU) and print docker-bake.json's variables.

    \b
    env $(lab images prepare cpu) docker buildx bake cpu --load
    """
    say = Console(quiet=quiet).detail
    for name, value in imagebuild.prepare(names, base=base, resolve_base=resolve_base, say=say).items():
        click.echo(f"{name}={value}")


@images.command("gpu-env")
@click.argument("name")
@option("--gpus", default="1", help="Which GPU, as for lab run.")
def gpu_env(name: str, gpus: str) -> None:
    """Print the variables by which compose/compose.yaml names a GPU of this machine.

    \b
    env $(lab images gpu-env rocm70) docker compose -f compose/compose.yaml --profile rocm70 up
    """
    from lab.core.options import Options
    from lab.engines.docker.host import site_for
    from lab.images.compose import gpu_environment

    image = spec.load(name)
    if image.vendor == "none":
        return
    chosen = site_for(image, Options(image=name, gpus=gpus)).gpus
    if len(chosen) > 1:
        raise UsageError("a profile of compose uses one GPU", fix="--gpus 0-0, or use lab run --image")
    for variable, value in gpu_environment(chosen[0]).items() if chosen else ():
        click.echo(f"{variable}={value}")


@images.command("check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@as_json("One object per check")
def check(names: tuple[str, ...], as_json: bool) -> None:
    """Check images' data, Dockerfiles, locks and compose file, and whatever of them is built here.

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


def _show_rows(found: Iterable[Row], as_json: bool) -> None:
    rows = []
    for row in found:
        rows.append(row)
        if not as_json:
            click.echo(f"{row.state:8} {row.image:10} {row.what:11} {row.detail}".rstrip())
    if as_json:
        click.echo(msgspec.json.encode(rows).decode())
    failed = [f"{row.image}: {row.what}" for row in rows if row.state == "failed"]
    if failed:
        raise StepFailed(f"{len(failed)} of {len(rows)} checks failed: {', '.join(failed)}")


@images.command("pin")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def pin(names: tuple[str, ...]) -> None:
    """Write the digest of each base, as its registry has it today, into image.toml. Needs docker buildx."""
    from lab.images import pin as imagepin

    for name, digest in imagepin.pin(names):
        click.echo(f"{name}: {digest}")


def _built(loaded: Sequence[Image]) -> list[dict[str, str | None] | None]:
    """Reference -> id here, or None, of all that each image needs; None for all where no engine answers."""
    try:
        ids = listed()
    except EngineError as error:
        Console().say(f"note: which images are here is not known: {error.what}; see lab doctor")
        return [None] * len(loaded)
    return [{target.ref: id_of(target.ref, ids) for target in targets_of(image)} for image in loaded]


def _state(ids: dict[str, str | None] | None) -> str:
    if ids is None:
        return "?"
    return "built" if all(ids.values()) else "partly" if any(ids.values()) else "-"
