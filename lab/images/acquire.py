"""Bring an image here, because a person asked for it: pulled by digest, or built from this tree.

`LAB_REGISTRY` (or --registry) is where lab's images are published, such as `ghcr.io/OWNER`. A release's
`images.json` names each of its images by digest. What comes from there gets the local name that runs use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

import lab
from lab.errors import BadDataError, ConfigError, EngineError, MissingError, UsageError
from lab.images.docker_cli import advice_on, output_of, stream
from lab.images.spec import registry_of
from lab.images.targets import Say, Target

REGISTRY = "LAB_REGISTRY"
BY_DIGEST = re.compile(r"[a-z0-9](?!.*//)[a-z0-9._:/-]*@sha256:[0-9a-f]{64}")
# Registries that are many owners' homes: without an owner's name their `lab` is not this project's.
OF_MANY_OWNERS = (
    *("docker.io", "index.docker.io", "registry-1.docker.io", "ghcr.io", "quay.io", "gcr.io"),
    *("registry.gitlab.com", "public.ecr.aws", "nvcr.io"),
)
ANY_DIGEST = f"sha256:{'0' * 64}"
VERSION_LABEL = "org.opencontainers.image.version"
TITLE_LABEL = "org.opencontainers.image.title"


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How a target gets here; `ref` is what is pulled."""

    target: str
    action: Literal["here", "pull", "build"] = msgspec.field(name="how")
    ref: str = ""


def choose(
    target: Target,
    *,
    local_version: str | None,
    registry: str | None,
    release: dict[str, str] | None,
    has_tree: bool,
) -> Way:
    """The image that is here, else the release's, else the registry's for this version, else a build.

    here: the version of lab in the image of this name, None without one. A checkout mounts its own lab into
    any; an installed lab is refused by runs in an image of another version, so that is not kept.
    """
    if local_version is not None and (has_tree or local_version == lab.__version__):
        return Way(target=target.name, action="here")
    if release is not None:
        if target.name not in release:
            names = ", ".join(sorted(release)) or "none"
            raise UsageError(
                f"the release has no image {target.name!r}",
                location=f"its images: {names}",
                fix="lab images build from a checkout",
            )
        return Way(target=target.name, action="pull", ref=release[target.name])
    if registry:
        return Way(target=target.name, action="pull", ref=f"{registry}/lab/{target.name}:{lab.__version__}")
    if has_tree:
        return Way(target=target.name, action="build")
    raise MissingError(
        f"{target.ref} is {_other(local_version)}, and nothing says where to get it"
        f"{'' if local_version is None else f' for lab {lab.__version__}'}",
        fix=f"--release images.json of lab {lab.__version__}, --registry, or a checkout of lab",
    )


def _other(version: str | None) -> str:
    return "not here" if version is None else f"of lab {version or '(no version)'}"


def registry_given(option: str | None) -> str | None:
    """The registry of the option or LAB_REGISTRY. Raises ConfigError for one that docker.io would answer."""
    registry = (option or os.environ.get(REGISTRY) or "").rstrip("/")
    if registry.removeprefix("https://").removeprefix("http://") in OF_MANY_OWNERS:
        raise ConfigError(
            f"{registry!r} names no owner: {registry}/lab belongs to another project",
            location=REGISTRY,
            fix=f"add the owner, such as {registry}/OWNER",
        )
    if registry and (
        registry_of(f"{registry}/lab") is None or not BY_DIGEST.fullmatch(f"{registry}@{ANY_DIGEST}")
    ):
        raise ConfigError(
            f"{registry!r} names no registry: it would be looked up on docker.io",
            location=REGISTRY,
            fix="begin it with a host, such as ghcr.io/OWNER",
        )
    return registry or None


def read_release(path: Path) -> dict[str, str]:
    """Name -> reference by digest, of a release's images.json."""
    try:
        references = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except OSError as error:
        raise MissingError(f"cannot read the release: {error.strerror}", location=path) from error
    except msgspec.DecodeError as error:
        raise BadDataError(f"not a release's images.json: {error}", location=path) from error
    for name, ref in references.items():
        if not BY_DIGEST.fullmatch(ref) or registry_of(ref) is None:
            raise BadDataError(f"{name} is not a registry's image by digest: {ref!r}", location=path)
    return references


def pull(cli: Sequence[str], way: Way, target: Target, say: Say) -> str:
    """Pull, see that it is this lab's, and give it its local name; -> its reference by digest."""
    code, tail = stream([*cli, "pull", way.ref], env={}, cwd=Path.cwd(), say=say)
    if code:
        raise pull_error(Path(cli[0]).name, way.ref, tail[-1] if tail else f"exit code {code}")
    labels = labels_of(cli, way.ref)
    if (version := labels.get(VERSION_LABEL)) != lab.__version__:
        raise BadDataError(
            f"the image is of lab {version or '(no version)'}, this is lab {lab.__version__}",
            location=way.ref,
            fix="name the release or the tag of this version",
        )
    if (title := labels.get(TITLE_LABEL)) != f"lab/{target.name}":
        raise BadDataError(
            f"the image is {title or 'none of lab (it has no title)'}, not lab/{target.name}",
            location=way.ref,
            fix="name the image of this target",
        )
    template = '{{join .RepoDigests " "}}'
    digests = output_of([*cli, "image", "inspect", "-f", template, way.ref]).split()
    output_of([*cli, "tag", way.ref, target.ref])
    return next((digest for digest in digests if registry_of(digest) == registry_of(way.ref)), way.ref)


def pull_error(program: str, ref: str, message: str) -> EngineError:
    """Why a pull failed, by the words that the program ended with, and what to do about it."""
    if (advice := advice_on("pull", message)) is not None:
        host = registry_of(ref) or "the registry"
        text = f"cannot pull: {advice.reason.format(host=host)} ({advice.match})"
        return EngineError(text, location=ref, fix=advice.fix.format(host=host, program=program))
    return EngineError(f"cannot pull: {message}", location=ref, fix="pull it by hand to see more")


def version_of(cli: Sequence[str], ref: str) -> str:
    """The version of lab that an image on the engine is labelled with; "" if with none."""
    return labels_of(cli, ref).get(VERSION_LABEL, "")


def labels_of(cli: Sequence[str], ref: str) -> dict[str, str]:
    """The labels of an image on the engine."""
    text = output_of([*cli, "image", "inspect", "-f", "{{json .Config.Labels}}", ref])
    return msgspec.json.decode(text, type=dict[str, str] | None) or {}
