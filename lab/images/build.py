"""`lab images build`: one wheel of this tree, then each image on the first Docker builder that works.

The wheel, and the wheels that only this host's pip can find, are made first and handed to the build as
files. So every image gets the same wheel, and an edit of lab rebuilds nothing else.
"""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from lab.errors import EngineError
from lab.images.arguments import (
    Given,
    build_arguments,
    certificate_secret,
    parse_given,
)
from lab.images.builders import Builder, base_python, find_builder, with_buildkit
from lab.images.docker_cli import advice_on, output_of, stream
from lab.images.targets import Target, targets
from lab.images.tree import ROOT, Say, build_lock, check_tree
from lab.images.wheel import Wheel, make_wheel
from lab.images.wheelhouse import fill_wheelhouse

SHOWN_LINES = 15


class Built(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    ref: str
    id: str
    size_bytes: int
    seconds: float
    wheel_sha256: str


def build(
    names: Sequence[str],
    *,
    base: str | None,
    say: Say,
    build_args: Sequence[str] = (),
    root: Path = ROOT,
) -> Iterator[Built]:
    """Build these images (all of them without names) one by one; yield each when it is done."""
    wanted = targets(names)
    check_tree(root)
    user_arguments = parse_given(build_args, wanted, root)
    builder = find_builder()
    with build_lock(root, say):
        wheel = make_wheel(root, say)
        for target in wanted:
            if target.wheels:
                fill_wheelhouse(target, base_python(builder, base or target.base_ref), root, say)
            yield _build_one(
                target,
                builder,
                wheel,
                base=base,
                user_arguments=user_arguments,
                say=say,
                root=root,
            )


def plan(
    names: Sequence[str], *, base: str | None, build_args: Sequence[str] = (), root: Path = ROOT
) -> list[str]:
    """The command that would build each image, with placeholders for its wheel. Builds nothing."""
    wanted = targets(names)
    user_arguments = parse_given(build_args, wanted, root)
    try:
        builder = find_builder()
    except EngineError:  # the command may be meant for another machine
        builder = with_buildkit("docker")
    commands = []
    for target in wanted:
        argv = build_argv(
            target,
            builder,
            Wheel(name="<the wheel of lab>", sha256="<its sha256>"),
            base=base,
            user_arguments=user_arguments,
            iidfile=Path("<file>"),
            root=root,
        )
        env = [f"{name}={value}" for name, value in builder.env.items()]
        commands.append(" ".join([*env, shlex.join(argv)]))
    return commands


def build_argv(
    target: Target,
    builder: Builder,
    wheel: Wheel,
    *,
    base: str | None,
    iidfile: Path,
    root: Path,
    user_arguments: Given | None = None,
) -> list[str]:
    """The one command that builds `target`. Its context is the tree's root, less what .dockerignore names."""
    arguments = build_arguments(target, wheel, base=base, user_arguments=user_arguments or {}, root=root)
    return [
        *builder.argv,
        "--progress=plain",
        *("--network", "host"),  # the index may be on this machine
        *("--file", str(target.dockerfile)),
        *(word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")),
        *(word for name, value in target.labels.items() for word in ("--label", f"{name}={value}")),
        *certificate_secret(),
        *("--iidfile", str(iidfile)),
        *("--tag", target.ref),
        ".",
    ]


def _build_one(
    target: Target,
    builder: Builder,
    wheel: Wheel,
    *,
    base: str | None,
    user_arguments: Given,
    say: Say,
    root: Path,
) -> Built:
    began, base_ref = time.monotonic(), base or target.base_ref
    with tempfile.TemporaryDirectory(prefix="lab-build-") as folder:
        iidfile = Path(folder, "iid")
        argv = build_argv(
            target,
            builder,
            wheel,
            base=base,
            user_arguments=user_arguments,
            iidfile=iidfile,
            root=root,
        )
        say(f"building {target.ref} on {base_ref}")
        code, tail = stream(argv, env=builder.env, cwd=root, say=say)
        if code:
            raise build_error(target, base_ref, tail)
        image_id = iidfile.read_text(encoding="utf-8").strip()
    size = output_of([builder.docker, "image", "inspect", "-f", "{{.Size}}", image_id], env=builder.env)
    return Built(
        name=target.name,
        ref=target.ref,
        id=image_id,
        size_bytes=int(size),
        seconds=round(time.monotonic() - began, 1),
        wheel_sha256=wheel.sha256,
    )


def build_error(target: Target, base: str, tail: Sequence[str]) -> EngineError:
    """What to do about a build that failed, by the words in its output."""
    advice = advice_on("build", "\n".join(tail))
    excerpt = "\n".join(f"      | {line}" for line in tail[-SHOWN_LINES:])
    return EngineError(
        f"cannot build {target.ref}:\n{excerpt}",
        location=f"{target.dockerfile} on {base}",
        fix=advice.fix if advice else None,
    )
