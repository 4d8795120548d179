"""What a container gets: (image, step, GPUs, host) -> ContainerSpec. Pure, so tested without a daemon."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from lab.core.gpu import GIVEN, HOST, PROMISE, Gpu
from lab.core.step import SOURCE, Step
from lab.errors import UsageError
from lab.gpus.environment import passage
from lab.hub import OFFLINE
from lab.images.spec import Image, MountRule, Tool
from lab.images.spec import Mount as Mount

TMP = "/tmp"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
# What a step that downloads takes from the caller's environment: how to reach the Hub from here.
NETWORK_VARIABLES = (
    *PROXIES,
    *(name.lower() for name in PROXIES),
    *("HF_ENDPOINT", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_DISABLE_XET"),
)
HUB_CACHE = "/hf"
# Without a network no name server knows the container's own name, for which torch's rendezvous waits.
ALONE = "lab"
# For NVIDIA's runtime where it is the engine's default: many images of CUDA ask it for all GPUs.
NO_GPUS = {"NVIDIA_VISIBLE_DEVICES": "void"}

# How the users in an engine's containers relate to the host's: the same numbers; root inside is the caller
# (rootless Docker); the caller may keep his number (rootless podman); all are others (userns-remap).
UserMapping = Literal["same", "rootless-docker", "rootless-podman", "remapped"]
USERNS_MODE: dict[UserMapping, str | None] = {
    "same": None,
    "rootless-docker": None,
    "rootless-podman": "keep-id",
    "remapped": "host",
}


class DeviceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs by their CDI names, or NVIDIA's by UUID.

    A count would always mean GPUs 0..N-1, and parallel runs would collide.
    """

    driver: str  # "cdi" | "nvidia"
    device_ids: tuple[str, ...]
    capabilities: tuple[tuple[str, ...], ...]


class HostContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a container may see of the host: the caller's identity and lab's folders."""

    run_dir: str
    hf_cache: str  # the Hub's cache of models; a login's token lies beside it and is never mounted
    cache: str
    name: str = ""  # of the machine
    uid: int
    gid: int
    user_mapping: UserMapping = "same"
    device_gids: tuple[str, ...] = ()  # numeric owners of /dev/kfd and the render nodes
    host_env: Mapping[str, str] = {}
    infiniband: bool = False
    selinux: bool = False  # the engine keeps containers from folders without a container's label
    cdi: bool = False  # the engine gives devices by the host's CDI specifications


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a container gets; nothing is added later."""

    image: str
    command: tuple[str, ...]
    user: str
    userns_mode: str | None
    group_add: tuple[str, ...]
    env: dict[str, str]
    mounts: tuple[Mount, ...]
    devices: tuple[str, ...]  # "host:container:rwm"
    device_requests: tuple[DeviceRequest, ...]
    security_opt: tuple[str, ...]
    ipc_mode: str
    shm_size: str | None
    mem_limit: str | None
    pids_limit: int
    network_mode: str
    hostname: str | None  # None: the engine's choice
    extra_hosts: dict[str, str]  # name -> address, in /etc/hosts
    tmpfs: dict[str, str]
    ulimits: dict[str, int]
    cap_drop: tuple[str, ...] = ("ALL",)
    cap_add: tuple[str, ...] = ()
    read_only: bool = True
    init: bool = True
    stop_signal: str = "SIGINT"
    working_dir: str = "/out"
    overrides_entrypoint: bool = False  # the command replaces the image's entry point, too
    tools: tuple[str, ...] = ()


def container_spec(image: Image, step: Step, gpus: Sequence[Gpu], host: HostContext) -> ContainerSpec:
    """Decide what the container of `step` gets. Pure: looks at no daemon, GPU or file."""
    tools = [_tool(image, name) for name in step.tools]
    several = len(gpus) > 1
    ipc = image.devices.multi_gpu_ipc if several else "private"
    network = _network(step, gpus)
    return ContainerSpec(
        image=image.workload_ref or image.ref,
        command=_command(image, step, tools),
        user=user_inside(host.user_mapping, host.uid, host.gid),
        userns_mode=USERNS_MODE[host.user_mapping],
        group_add=_groups(host) if image.vendor == "amd" and gpus else (),
        env={**_env(image, step, tools, host, network), **_gpu_env(image, gpus, host)},
        mounts=_mounts(image, step, tools, host),
        devices=_devices(image, gpus, host),
        device_requests=_device_requests(image, gpus, host),
        security_opt=(
            "no-new-privileges:true",
            *(("label=disable",) if host.selinux else ()),
            *(image.devices.security_opt if gpus else ()),
        ),
        ipc_mode=ipc,
        shm_size=image.devices.shm_size if ipc == "private" else None,
        mem_limit=image.devices.mem_limit,
        pids_limit=image.devices.pids_limit,
        network_mode=network,
        hostname=ALONE if network == "none" else None,
        extra_hosts={ALONE: "127.0.0.1"} if network == "none" else {},
        tmpfs={TMP: "size=8g,mode=1777,exec"},  # exec: compiled kernels are loaded from here
        ulimits={"stack": 67108864, **({"memlock": -1} if host.infiniband else {})},
        tools=step.tools,
        overrides_entrypoint=image.is_foreign,
    )


def _network(step: Step, gpus: Sequence[Gpu]) -> str:
    """Ranks of one host connect over loopback, which exists without a network too.

    But NCCL waits for ever without another interface, and no bridge reaches another host.
    """
    if step.nodes > 1:
        return "host"
    return "bridge" if len(gpus) > 1 else "none"


def analysis_spec(image: Image, host: HostContext, *, inputs: str) -> ContainerSpec:
    """The container that analyses a run: inputs read-only at /in, results in /out, no GPU and no network.

    Traces come from outside and are hostile until parsed, so it gets less than any other container.
    """
    command = Step(
        name="analysis", argv=("python", "-m", "lab", "analyze", "/in", "--out", "/out", "--json", "--quiet")
    )
    base = container_spec(image, command, [], host)
    mounts = (Mount(source=host.run_dir, target="/out"), Mount(source=inputs, target="/in", read_only=True))
    env = {**base.env, "XDG_CACHE_HOME": TMP, "MPLCONFIGDIR": TMP}
    return msgspec.structs.replace(base, image=image.ref, mounts=mounts, env=env)


def fetch_spec(image: Image, step: Step, host: HostContext) -> ContainerSpec:
    """The container that downloads a model: no GPU, the network, and the cache of models writable.

    It gets what it needs to reach the Hub (token, proxies) on its standard input instead.
    """
    base = container_spec(image, step, [], host)
    env = {name: value for name, value in base.env.items() if name not in OFFLINE}
    mounts = tuple(
        msgspec.structs.replace(mount, read_only=False) if mount.target == HUB_CACHE else mount
        for mount in base.mounts
    )
    network = "host" if _through_loopback(host.host_env) else "bridge"
    return msgspec.structs.replace(
        base, env=env, mounts=mounts, network_mode=network, hostname=None, extra_hosts={}
    )


def least_spec(
    image: str,
    command: tuple[str, ...],
    user: str,
    userns_mode: str | None,
    env: dict[str, str],
    pids_limit: int,
) -> ContainerSpec:
    """A container that gets nothing of this host: no folder, device, network or capability."""
    return ContainerSpec(
        image=image,
        command=command,
        user=user,
        userns_mode=userns_mode,
        group_add=(),
        env=env,
        mounts=(),
        devices=(),
        device_requests=(),
        security_opt=("no-new-privileges:true",),
        ipc_mode="private",
        shm_size=None,
        mem_limit=None,
        pids_limit=pids_limit,
        network_mode="none",
        hostname=None,
        extra_hosts={},
        tmpfs={},
        ulimits={},
        working_dir="/",
    )


def network_settings(host_env: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables that say how to reach the Hub. A proxy's URL may contain a password."""
    return {name: host_env[name] for name in NETWORK_VARIABLES if host_env.get(name)}


def _through_loopback(host_env: Mapping[str, str]) -> bool:
    """Whether the Hub or a proxy is named by this host's loopback address, which a bridge does not reach."""
    urls = (host_env.get(name, "") for name in NETWORK_VARIABLES if name.upper() != "NO_PROXY")
    return any(_is_loopback(url) for url in urls)


def _is_loopback(url: str) -> bool:
    try:
        name = urlsplit(url if "://" in url else f"//{url}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:  # a name, or not a URL
        return False


def user_inside(mapping: UserMapping, uid: int, gid: int) -> str:
    """The numbers by which a container's processes are the caller outside."""
    return "0:0" if mapping == "rootless-docker" else f"{uid}:{gid}"


def _groups(host: HostContext) -> tuple[str, ...]:
    """The groups that may open the GPUs' nodes. A rootless engine cannot name groups of the host."""
    return {"rootless-docker": (), "rootless-podman": ("keep-groups",)}.get(
        host.user_mapping, host.device_gids
    )


def _command(image: Image, step: Step, tools: Sequence[Tool]) -> tuple[str, ...]:
    inner = (image.python if step.argv[0] == "python" else step.argv[0], *step.argv[1:])
    prefix = tuple(part.format(folder=step.folder) for tool in tools for part in tool.prefix)
    return prefix + inner


def _env(image: Image, step: Step, tools: Sequence[Tool], host: HostContext, network: str) -> dict[str, str]:
    """A uid without a passwd entry has HOME=/, and getpass, Triton and the Hub's cache fail without these."""
    home = {
        "HOME": TMP,
        "USER": "lab",
        "LOGNAME": "lab",
        "XDG_CACHE_HOME": "/cache",
        "TRITON_CACHE_DIR": "/cache/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/cache/inductor",
        "HF_HOME": f"{TMP}/hf",
        "HF_HUB_CACHE": HUB_CACHE,
        **OFFLINE,
        "PYTHONUNBUFFERED": "1",
        "LAB_IMAGE": image.name,
        **({HOST: host.name} if host.name else {}),
    }
    inside = [mount.target for mount in image.user_mounts]
    passed = passage(host.host_env, network=network, inside=inside).passed
    wrapped = {name: value.format(folder=step.folder) for tool in tools for name, value in tool.env.items()}
    return {**home, **passed, **image.env, **wrapped, **step.env}


def _gpu_env(image: Image, gpus: Sequence[Gpu], host: HostContext) -> dict[str, str]:
    """Name its GPUs to a step, and hide all others from a default runtime of NVIDIA's."""
    gpu_uuids = ",".join(gpu.uuid for gpu in gpus)
    promise = {PROMISE: str(len(gpus)), GIVEN: gpu_uuids} if gpus else {}
    by_toolkit = bool(gpus) and not _by_cdi(gpus, host)
    return promise if image.vendor != "nvidia" or by_toolkit else {**promise, **NO_GPUS}


def _mounts(image: Image, step: Step, tools: Sequence[Tool], host: HostContext) -> tuple[Mount, ...]:
    folders = {"hf_cache": host.hf_cache, "cache": host.cache}
    rules = [*image.mounts, *(rule for tool in tools for rule in tool.mounts)]
    mounts = [
        Mount(source=folders.get(r.source) or _from_env(r, host), target=r.target, read_only=r.read_only)
        for r in rules
    ]
    source = [Mount(source=step.source, target=SOURCE, read_only=True)] if step.source else []
    return (Mount(source=host.run_dir, target="/out"), *mounts, *source, *image.user_mounts)


def _from_env(rule: MountRule, host: HostContext) -> str:
    name = rule.source.removeprefix("env:")
    return host.host_env.get(name) or f"<path in ${name}>"


def _devices(image: Image, gpus: Sequence[Gpu], host: HostContext) -> tuple[str, ...]:
    """AMD: /dev/kfd and only the chosen render nodes, so that the other GPUs cannot be opened at all.

    The nodes may be under LAB_DEV_ROOT on the host; inside they are always where the drivers look for them.
    """
    by_node = image.vendor == "amd" and not _by_cdi(gpus, host)
    nodes = [PurePosixPath(gpu.render_node) for gpu in gpus if gpu.render_node and by_node]
    kfd = [(nodes[0].parent.parent / "kfd", "/dev/kfd")] if nodes else []
    fabric = [(PurePosixPath("/dev/infiniband"), "/dev/infiniband")] if gpus and host.infiniband else []
    pairs = [*kfd, *((node, f"/dev/dri/{node.name}") for node in nodes), *fabric]
    return tuple(f"{host}:{inside}:rwm" for host, inside in pairs)


def _device_requests(image: Image, gpus: Sequence[Gpu], host: HostContext) -> tuple[DeviceRequest, ...]:
    """By CDI where the engine knows it and a specification names every GPU; else NVIDIA's toolkit by UUID."""
    if not gpus or image.vendor == "none":
        return ()
    if _by_cdi(gpus, host):
        names = tuple(gpu.cdi for gpu in gpus if gpu.cdi)
        return (DeviceRequest(driver="cdi", device_ids=names, capabilities=()),)
    if image.vendor != "nvidia":
        return ()
    uuids = tuple(gpu.uuid for gpu in gpus)
    return (DeviceRequest(driver="nvidia", device_ids=uuids, capabilities=(image.devices.capabilities,)),)


def _by_cdi(gpus: Sequence[Gpu], host: HostContext) -> bool:
    return host.cdi and bool(gpus) and all(gpu.cdi for gpu in gpus)


def _tool(image: Image, name: str) -> Tool:
    if name not in image.tools:
        names = ", ".join(sorted(image.tools)) or "none"
        raise UsageError(
            f"the image {image.name!r} has no tool {name!r}",
            location=f"its tools: {names}",
            fix="choose an image that has it: lab images list",
        )
    return image.tools[name]
