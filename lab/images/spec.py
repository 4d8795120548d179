"""An image is data: images/<name>/image.toml, read strictly, and a name that no stranger can answer.

LAB_IMAGES names another folder of images.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from lab.core.step import NAME
from lab.errors import ConfigError, MissingError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Vendor = Literal["nvidia", "amd", "none"]
Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
Requirement = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]+==[A-Za-z0-9.+]+$")]
Version = Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+)*$")]
Size = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]*[kmg]$")]


class MountRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`source` is a folder of lab ("hf_cache", "cache"), or "env:NAME": the host path in that variable."""

    source: Annotated[str, msgspec.Meta(pattern=r"^(hf_cache|cache|env:[A-Z][A-Z0-9_]*)$")]
    target: Annotated[str, msgspec.Meta(pattern=r"^/[A-Za-z0-9._/-]+$")]
    read_only: bool = False


class Devices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    capabilities: tuple[str, ...] = ()
    shm_size: Size = "2g"
    mem_limit: Size | None = None  # of the whole container, swap included
    pids_limit: Annotated[int, msgspec.Meta(ge=1)] = 16384  # processes and threads: no fork bomb needs more
    multi_gpu_ipc: Literal["host", "private"] = "private"
    security_opt: tuple[str, ...] = ()


class Tool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program wrapped around a step. `{folder}` in prefix and env is the step's folder."""

    summary: str = ""
    prefix: tuple[str, ...] = ()
    env: dict[str, str] = {}
    mounts: tuple[MountRule, ...] = ()
    needs: tuple[str, ...] = ()  # programs that must be on PATH in the image


class Build(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The host's pip downloads `workload_wheels` (such as "torch==2.13.0"); the build gets them as files."""

    workload_wheels: tuple[Requirement, ...] = ()
    labels: dict[str, str] = {}  # besides those that every image has


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    target: str
    read_only: bool = False


class Image(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    summary: str
    vendor: Vendor
    ref: str
    base: str
    base_digest: Digest | None = None  # written by scripts/images.py pin
    python: str
    python_version: str
    dockerfile: str
    licences: str = "Apache-2.0"  # of what the build adds to the base, as an SPDX expression
    workload_ref: str | None = None  # when workloads need another image than analysis does
    workload_dockerfile: str | None = None
    build: Build = Build()
    archs: tuple[str, ...] = ()
    min_driver: Version | None = None  # the oldest driver of the vendor on which its CUDA or ROCm runs
    require: str = ""  # NVIDIA_REQUIRE_CUDA of its base: which drivers NVIDIA's toolkit starts it on
    devices: Devices = Devices()
    env: dict[str, str] = {}
    mounts: tuple[MountRule, ...] = ()
    tools: dict[str, Tool] = {}
    user_mounts: tuple[Mount, ...] = ()  # of --mount; this and the next are never in a file
    is_foreign: bool = False  # not made by lab: no lab inside, and an entry point of its own


def images_root() -> Path:
    """$LAB_IMAGES, else images/ of the source tree, else the copy in the wheel."""
    if folder := os.environ.get("LAB_IMAGES"):
        return Path(folder)
    package = Path(__file__).parents[1]
    source = package.parent / "images"
    return source if source.is_dir() else package / "_images"


def names(root: Path | None = None) -> list[str]:
    return sorted(path.parent.name for path in (root or images_root()).glob("*/image.toml"))


def load(name: str, root: Path | None = None) -> Image:
    """The image of this name. Raises UsageError for an unknown name, ConfigError for an invalid TOML."""
    folder = root or images_root()
    available = names(folder)
    if not NAME.match(name) or name not in available:
        raise UsageError(
            f"unknown image {name!r}",
            location=folder,
            fix=f"one of: {', '.join(available) or '(none found)'}",
        )
    return parse(folder / name / "image.toml", name)


def parse(path: Path, name: str) -> Image:
    """Read one image.toml strictly: an unknown key is an error."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MissingError(f"cannot read the image: {error}", location=path) from error
    try:
        image = msgspec.convert(tomllib.loads(text), Image)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}", location=path) from error
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"invalid image.toml: {error}", location=path, fix="see images/README.md for the keys"
        ) from error
    if image.name != name:
        raise ConfigError(f"the image is named {image.name!r}, its folder {name!r}", location=path)
    return image


# Names of images: registry/repository:tag. Without a registry, every engine completes a name to docker.io's.
# lab's own images are localhost/lab/NAME: what was built here, or what `lab setup` brought here from the
# registry that LAB_REGISTRY names. No pull of such a name can reach a stranger's repository.
LOCAL = "localhost"


def registry_of(ref: str) -> str | None:
    """The registry that this name states; None if an engine would ask docker.io."""
    registry, slash, _ = ref.partition("/")
    return registry if slash and (registry == LOCAL or "." in registry or ":" in registry) else None


def repository_of(ref: str) -> str:
    """The name without registry, tag and digest: `lab/cuda`."""
    registry = registry_of(ref)
    path = ref.removeprefix(f"{registry}/") if registry else ref
    return path.split("@")[0].split(":")[0]
