"""`lab images build`: one wheel of this tree, then each image on the first Docker builder that works.

The wheel, and the wheels that only this host's pip can find, are made first and handed to the build as
files. So every image gets the same wheel, and an edit of lab rebuilds nothing else. The build arguments name
the base, the network's settings, and where the image comes from.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from lab import __version__
from lab.core.provenance import git, lab_identity
from lab.errors import EngineError, UsageError
from lab.images.docker_cli import (
    Builder,
    advice_on,
    base_python,
    find_builder,
    output_of,
    stream,
    with_buildkit,
)
from lab.images.targets import ROOT, Say, Target, build_lock, check_tree, file_hash, targets
from lab.images.wheel import Wheel, fill_wheelhouse, make_wheel

CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
PIP_VARIABLES = (*INDEX_VARIABLES, "PIP_DEFAULT_TIMEOUT")
# Docker predefines these arguments and keeps them out of the image's history.
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
LOCK_HASH = "LAB_LOCK_SHA256"
Given = Mapping[str, str]  # what the user sets: --build-arg NAME=VALUE
PROVENANCE = ("LAB_VERSION", "LAB_REVISION", "LAB_SOURCE", "LAB_CREATED", "LAB_WHEEL_SHA256", LOCK_HASH)
OWN_ARGUMENTS = ("BASE_IMAGE", *PROVENANCE)


def build_arguments(
    target: Target, wheel: Wheel, *, base: str | None, user_arguments: Given, root: Path
) -> dict[str, str]:
    """Every argument of one build; of the user's own, those that this Dockerfile declares."""
    text = (root / target.dockerfile).read_text(encoding="utf-8") if user_arguments else ""
    declared = {name: value for name, value in user_arguments.items() if declares(text, name)}
    return {
        "BASE_IMAGE": base or target.base_ref,
        **_network_settings(os.environ),
        **shared_provenance(wheel, root),
        LOCK_HASH: file_hash(root / target.lock),
        **declared,
    }


def declares(dockerfile: str, name: str) -> bool:
    return re.search(rf"^ARG {re.escape(name)}\b", dockerfile, re.MULTILINE) is not None


def parse_given(words: Sequence[str], wanted: Sequence[Target], root: Path) -> dict[str, str]:
    """The user's NAME=VALUE pairs. Raises UsageError for one that no wanted Dockerfile reads."""
    texts = [(root / target.dockerfile).read_text(encoding="utf-8") for target in wanted if words]
    arguments = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--build-arg {word!r} is not NAME=VALUE")
        if name in OWN_ARGUMENTS:
            raise UsageError(f"lab sets {name} itself", fix="--base REF sets BASE_IMAGE")
        if not any(declares(text, name) for text in texts):
            files = ", ".join(str(target.dockerfile) for target in wanted)
            raise UsageError(f"no Dockerfile of this build has an argument {name!r}", location=files)
        arguments[name] = value
    return arguments


def shared_provenance(wheel: Wheel, root: Path) -> dict[str, str]:
    """Where every image of this tree comes from.

    LAB_CREATED is the time of the commit, so that the same tree gives the same image.
    """
    identity = lab_identity()
    return {
        "LAB_VERSION": __version__,
        "LAB_REVISION": (identity.commit or "") + ("-dirty" if identity.dirty else ""),
        "LAB_SOURCE": _source_url(root),
        "LAB_CREATED": git(root, "log", "-1", "--format=%cI") or "",
        "LAB_WHEEL_SHA256": wheel.sha256,
    }


def certificate_secret() -> list[str]:
    """The certificate file of a proxy, as a build secret, if the environment names one."""
    paths = (os.environ.get(name, "") for name in CA_VARIABLES)
    certificate = next((path for path in paths if Path(path).is_file()), None)
    return ["--secret", f"id=ca,src={certificate}"] if certificate else []


def _network_settings(env: Mapping[str, str]) -> dict[str, str]:
    """pip's index and the proxies. An index with a password would stay readable in the image's history."""
    for name in INDEX_VARIABLES:
        for url in env.get(name, "").split():
            if "@" in urlsplit(url).netloc:
                raise UsageError(
                    f"{name} contains a password, which would stay in the image's history",
                    fix="use an index that needs none, or a proxy that adds it",
                )
    return {name: env[name] for name in (*PIP_VARIABLES, *PROXY_VARIABLES) if env.get(name)}


def _source_url(root: Path) -> str:
    """Where this tree was cloned from, if the URL contains nothing private."""
    url = git(root, "remote", "get-url", "origin") or ""
    return url if urlsplit(url).scheme == "https" and "@" not in urlsplit(url).netloc else ""


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
