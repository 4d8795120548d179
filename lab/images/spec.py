"""An image is data: images/<name>/image.toml. What a container gets is decided here, purely, and tested without a
daemon: (image, step, GPUs) -> ContainerSpec.

LAB_IMAGES points at another folder of images.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import msgspec

from lab.core.gpu import Gpu
from lab.core.step import NAME, Step
from lab.errors import ConfigError, MissingError, UsageError
from lab.secrets import is_secret

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Vendor = Literal["nvidia", "amd", "none"]
Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
Size = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]*[kmg]$")]


class MountRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`source` is one of lab's folders ("hf_cache", "cache") or "env:NAME", a host path in that variable."""

    source: Annotated[str, msgspec.Meta(pattern=r"^(hf_cache|cache|env:[A-Z][A-Z0-9_]*)$")]
    target: Annotated[str, msgspec.Meta(pattern=r"^/[A-Za-z0-9._/-]+$")]
    read_only: bool = False


class Devices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    capabilities: tuple[str, ...] = ()
    shm_size: Size = "2g"
    mem_limit: Size | None = None  # of the whole container; swap does not stretch it
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
    """`workload_wheels` (such as "torch==2.13.0") are found by the host's own pip and handed to the build as files."""

    workload_wheels: tuple[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]+==[A-Za-z0-9.+]+$")], ...
    ] = ()


class Image(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    summary: str
    vendor: Vendor
    ref: str
    base: str
    base_digest: Digest | None = None  # written by `lab images pin`
    python: str
    python_version: str
    dockerfile: str
    workload_ref: str | None = None  # when workloads need another image than analysis does
    workload_dockerfile: str | None = None
    build: Build = Build()
    archs: tuple[str, ...] = ()
    devices: Devices = Devices()
    env: dict[str, str] = {}
    mounts: tuple[MountRule, ...] = ()
    tools: dict[str, Tool] = {}


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    target: str
    read_only: bool = False


class DeviceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """For NVIDIA: GPUs by UUID, never by count (a count always means GPUs 0..N-1, so parallel runs collide)."""

    driver: str
    device_ids: tuple[str, ...]
    capabilities: tuple[tuple[str, ...], ...]


class HostContext(msgspec.Struct, frozen=True, kw_only=True):
    """What of the host a container may see: the caller's identity and lab's folders."""

    run_dir: str
    hf_cache: str
    cache: str
    uid: int
    gid: int
    device_gids: tuple[str, ...] = ()  # numeric owners of /dev/kfd and the render nodes
    host_env: Mapping[str, str] = {}
    infiniband: bool = False


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a container gets; nothing else is added later."""

    image: str
    command: tuple[str, ...]
    user: str
    group_add: tuple[str, ...]
    env: dict[str, str]
    mounts: tuple[Mount, ...]
    devices: tuple[str, ...]  # "host:container:rwm"
    device_requests: tuple[DeviceRequest, ...]
    security_opt: tuple[str, ...]
    ipc_mode: str
    shm_size: str | None
    mem_limit: str | None
    network_mode: str
    tmpfs: dict[str, str]
    ulimits: dict[str, int]
    cap_drop: tuple[str, ...] = ("ALL",)
    cap_add: tuple[str, ...] = ()
    read_only: bool = True
    init: bool = True
    stop_signal: str = "SIGINT"
    working_dir: str = "/out"
    tools: tuple[str, ...] = ()


TMP = "/tmp"


def container_spec(image: Image, step: Step, gpus: Sequence[Gpu], host: HostContext) -> ContainerSpec:
    """Decide what the container of `step` gets. Pure: no daemon, no GPU and no file is looked at."""
    tools = [_tool(image, name) for name in step.tools]
    several = len(gpus) > 1
    ipc = image.devices.multi_gpu_ipc if several else "private"
    return ContainerSpec(
        image=image.workload_ref or image.ref,
        command=_command(image, step, tools),
        user=f"{host.uid}:{host.gid}",
        group_add=host.device_gids if image.vendor == "amd" and gpus else (),
        env=_env(image, step, tools, host),
        mounts=_mounts(image, tools, host),
        devices=_devices(image, gpus, host),
        device_requests=_device_requests(image, gpus),
        security_opt=("no-new-privileges:true", *(image.devices.security_opt if gpus else ())),
        ipc_mode=ipc,
        shm_size=image.devices.shm_size if ipc == "private" else None,
        mem_limit=image.devices.mem_limit,
        # One host's ranks meet on the loopback address, which a container without network still has; NCCL and gloo
        # look for an interface to name themselves by and wait for ever without: several ranks get the bridge, and
        # without GPUs nobody knows how many a step starts.
        network_mode="bridge" if several or not gpus else "none",
        tmpfs={TMP: "size=8g,mode=1777,exec"},  # exec: compiled kernels are loaded from here
        ulimits={"stack": 67108864, **({"memlock": -1} if host.infiniband else {})},
        tools=step.tools,
    )


def analysis_spec(image: Image, host: HostContext, *, inputs: str) -> ContainerSpec:
    """The container that analyses a run: inputs read-only at /in, results to /out, no GPU and no network.

    Traces come from outside and are hostile until parsed, so this one gets less than any other.
    """
    command = Step(
        name="analysis", argv=("python", "-m", "lab", "analyze", "/in", "--out", "/out", "--json", "--quiet")
    )
    base = container_spec(image, command, [], host)
    mounts = (Mount(source=host.run_dir, target="/out"), Mount(source=inputs, target="/in", read_only=True))
    env = {**base.env, "XDG_CACHE_HOME": TMP, "MPLCONFIGDIR": TMP}
    return msgspec.structs.replace(base, image=image.ref, mounts=mounts, env=env, network_mode="none")


def _command(image: Image, step: Step, tools: Sequence[Tool]) -> tuple[str, ...]:
    inner = (image.python if step.argv[0] == "python" else step.argv[0], *step.argv[1:])
    prefix = tuple(part.format(folder=step.folder) for tool in tools for part in tool.prefix)
    return prefix + inner


def _env(image: Image, step: Step, tools: Sequence[Tool], host: HostContext) -> dict[str, str]:
    """A uid without a passwd entry has HOME=/ and fails in getpass, Triton and the hub's cache: these cure it."""
    home = {
        "HOME": TMP,
        "USER": "lab",
        "LOGNAME": "lab",
        "XDG_CACHE_HOME": "/cache",
        "TRITON_CACHE_DIR": "/cache/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/cache/inductor",
        "HF_HOME": "/hf",
        "PYTHONUNBUFFERED": "1",
        "LAB_IMAGE": image.name,
    }
    wrapped = {name: value.format(folder=step.folder) for tool in tools for name, value in tool.env.items()}
    return {**home, **passed_on(host.host_env), **image.env, **wrapped, **step.env}


# What a user sets to steer a run, and what must not leave the host: GPU indices mean others inside, paths are not there.
PASSED_ON = ("NCCL_", "RCCL_", "HIP_", "HSA_", "CUDA_", "TORCH_", "TRITON_")
KEPT_HERE = re.compile(r"_VISIBLE_DEVICES$|_(HOME|PATH|PATH64|ROOT|DIR|FILE|VERSION)$")


def passed_on(host_env: Mapping[str, str]) -> dict[str, str]:
    """The host's variables that steer collectives, drivers and compilers; secrets, paths and GPU indices stay out."""
    return {
        name: value
        for name, value in sorted(host_env.items())
        if name.startswith(PASSED_ON) and not KEPT_HERE.search(name) and not is_secret(name)
    }


def _mounts(image: Image, tools: Sequence[Tool], host: HostContext) -> tuple[Mount, ...]:
    folders = {"hf_cache": host.hf_cache, "cache": host.cache}
    rules = [*image.mounts, *(rule for tool in tools for rule in tool.mounts)]
    given = [
        Mount(source=folders.get(r.source) or _from_env(r, host), target=r.target, read_only=r.read_only)
        for r in rules
    ]
    return (Mount(source=host.run_dir, target="/out"), *given)


def _from_env(rule: MountRule, host: HostContext) -> str:
    name = rule.source.removeprefix("env:")
    return host.host_env.get(name) or f"<path in ${name}>"


def _devices(image: Image, gpus: Sequence[Gpu], host: HostContext) -> tuple[str, ...]:
    """AMD: /dev/kfd and only the picked render nodes; that, and not an environment variable, is the isolation.

    The nodes may lie under LAB_DEV_ROOT on the host; inside they are always where the drivers look for them.
    """
    nodes = [PurePosixPath(gpu.render_node) for gpu in gpus if gpu.render_node and image.vendor == "amd"]
    kfd = [(nodes[0].parent.parent / "kfd", "/dev/kfd")] if nodes else []
    fabric = [(PurePosixPath("/dev/infiniband"), "/dev/infiniband")] if gpus and host.infiniband else []
    pairs = [*kfd, *((node, f"/dev/dri/{node.name}") for node in nodes), *fabric]
    return tuple(f"{host}:{inside}:rwm" for host, inside in pairs)


def _device_requests(image: Image, gpus: Sequence[Gpu]) -> tuple[DeviceRequest, ...]:
    if image.vendor != "nvidia" or not gpus:
        return ()
    return (
        DeviceRequest(
            driver="nvidia",
            device_ids=tuple(gpu.uuid for gpu in gpus),
            capabilities=(image.devices.capabilities,),
        ),
    )


def _tool(image: Image, name: str) -> Tool:
    if name not in image.tools:
        have = ", ".join(sorted(image.tools)) or "none"
        raise UsageError(
            f"the image {image.name!r} has no tool {name!r}",
            where=f"its tools: {have}",
            fix="choose an image that has it: lab images list",
        )
    return image.tools[name]


# Loading.


def images_root() -> Path:
    """$LAB_IMAGES, else the source tree's images/, else the copy inside the wheel."""
    if given := os.environ.get("LAB_IMAGES"):
        return Path(given)
    package = Path(__file__).parents[1]
    source = package.parent / "images"
    return source if source.is_dir() else package / "_images"


def names(root: Path | None = None) -> list[str]:
    return sorted(path.parent.name for path in (root or images_root()).glob("*/image.toml"))


def load(name: str, root: Path | None = None) -> Image:
    """The image of this name. Raises UsageError for an unknown one, ConfigError where the TOML does not fit."""
    folder = root or images_root()
    known = names(folder)
    if not NAME.match(name) or name not in known:
        raise UsageError(
            f"there is no image {name!r}", where=folder, fix=f"one of: {', '.join(known) or '(none found)'}"
        )
    return parse((folder / name / "image.toml"), name)


def parse(path: Path, name: str) -> Image:
    """Read one image.toml strictly: an unknown key is an error."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MissingError(f"cannot read the image: {error}", where=path) from error
    try:
        image = msgspec.convert(tomllib.loads(text), Image)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}", where=path) from error
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"does not fit an image: {error}", where=path, fix="see images/README.md for the keys"
        ) from error
    if image.name != name:
        raise ConfigError(f"is named {image.name!r} but lies in the folder {name!r}", where=path)
    return image
