"""compose/compose.yaml, written from the images' own data.

Each container gets what `lab run` would give it, with the host's paths, user and GPUs as variables. The
file uses only what docker-compose 1.29 and compose v2 both read.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from lab.core.gpu import GIVEN, Gpu
from lab.core.step import Step
from lab.errors import GpuError
from lab.images import spec as images
from lab.images.container import ContainerSpec, HostContext, container_spec
from lab.images.spec import Image

FILE = Path("compose/compose.yaml")
HEADER = """\
# Written by `make compose` from images/*/image.toml: change those, not this file.
#
#   mkdir -p experiments/.cache/hf experiments/.cache/lab     once, or the engine creates them as root's
#   docker compose -f compose/compose.yaml --profile cpu up   `make compose-up` does both
#
#   HF_HUB_CACHE=experiments/.cache/hf lab fetch MODEL        a model of the Hub; the containers are offline
#
# Profiles: {profiles}. Each runs a small sweep and then its analysis, in the images that
# `lab setup` or `lab images build` brought here: nothing is pulled.
# Profiles that end in -shell stay up with the same devices and folders:
#   docker compose -f compose/compose.yaml --profile cuda-shell up -d
#   docker compose -f compose/compose.yaml exec cuda-shell lab run --analysis none -o /out/mine sweep -c 28
#   docker compose -f compose/compose.yaml exec analysis lab analyze /out/mine
# Variables: UID and GID (the owner of the results), LAB_EXPERIMENTS, LAB_CACHE, LAB_RUN;
# for NVIDIA LAB_GPU (index, UUID or MIG instance; 0 if not set);
# for AMD LAB_RENDER (its node, such as renderD128) and RENDER_GID (the node's group). Those of this machine:
#   env $(lab images gpu-env rocm70) docker compose -f compose/compose.yaml --profile rocm70 up
# Each profile uses one GPU; for several: lab run --image.
"""
# No guess: an engine refuses these names with an error that shows them.
NO_NODE, NO_GROUP = "LAB_RENDER_is_not_set", "RENDER_GID_is_not_set"
HOST = HostContext(
    run_dir="${LAB_EXPERIMENTS:-../experiments}",
    hf_cache="${LAB_CACHE:-../experiments/.cache}/hf",
    cache="${LAB_CACHE:-../experiments/.cache}/lab",
    uid=0,  # given as variables below
    gid=0,
    device_gids=(f"${{RENDER_GID:-{NO_GROUP}}}",),
)
WAIT = ("sleep", "infinity")
# lab starts: the interpreter, its packages and the file system work.
HEALTH = {
    "test": ["CMD", "lab", "--version"],
    "interval": "60s",
    "timeout": "30s",
    "retries": 3,
    "start_period": "30s",
}
USER = "${UID:-1000}:${GID:-1000}"
RUN = "${LAB_RUN:-compose}_"


def render() -> str:
    """The text of compose.yaml."""
    services: dict[str, Any] = {}
    for name in profiles():
        image = images.load(name)
        services[name] = _workload(image)
        services[f"{name}-analysis"] = _analysis(image)
        services[shell(name)] = _shell(image)
    services["analysis"] = _standing_analysis()
    text = yaml.dump({"services": services}, Dumper=_Plain, sort_keys=False, width=1000)
    return HEADER.format(profiles=", ".join(profiles())) + text


def profiles() -> list[str]:
    return images.names()


def shell(name: str) -> str:
    """The profile and the service of this image's container that stays up."""
    return f"{name}-shell"


def program() -> list[str] | None:
    """The command line of compose: v2 as a plugin of docker, else the older program."""
    docker, older = shutil.which("docker"), shutil.which("docker-compose")
    if docker:
        done = subprocess.run([docker, "compose", "version"], capture_output=True, check=False)
        if done.returncode == 0:
            return [docker, "compose"]
    return [older] if older else None


def _workload(image: Image) -> dict[str, Any]:
    """A sweep of one configuration, on two ranks where it needs no GPU; a second `up` runs nothing again."""
    gpus = _gpus(image)
    flags = f"-c 28 -t 256 --ranks {len(gpus) or 2} --skip-existing".split()
    argv = ("lab", "run", "--analysis", "none", "--output-dir", f"/out/{RUN}{image.name}", "sweep", *flags)
    spec = container_spec(image, Step(name="sweep", argv=argv, num_gpus=len(gpus)), gpus, HOST)
    return {"profiles": [image.name], **_service(spec)}


def _analysis(image: Image) -> dict[str, Any]:
    """Starts only when the workload has succeeded."""
    service = _analysis_service("lab", "analyze", f"/out/{RUN}{image.name}")
    after = {image.name: {"condition": "service_completed_successfully"}}
    return {"profiles": [image.name], **service, "depends_on": after}


def _shell(image: Image) -> dict[str, Any]:
    """The same container as the workload's, waiting for `exec`."""
    gpus = _gpus(image)
    spec = container_spec(image, Step(name="shell", argv=WAIT, num_gpus=len(gpus)), gpus, HOST)
    return {"profiles": [shell(image.name)], **_service(spec), "healthcheck": HEALTH}


def _standing_analysis() -> dict[str, Any]:
    """One for all images, because analysis does not depend on the GPU."""
    return {
        "profiles": [shell(name) for name in profiles()],
        **_analysis_service(*WAIT),
        "healthcheck": HEALTH,
    }


def _analysis_service(*argv: str) -> dict[str, Any]:
    """Analysis needs neither GPU nor network."""
    cpu = images.load("cpu")
    step = Step(name="analysis", argv=argv)
    service = _service(container_spec(cpu, step, [], HOST))
    service |= {
        "image": cpu.ref,
        "network_mode": "none",
        "volumes": [volume for volume in service["volumes"] if not volume.endswith(":/hf:ro")],
    }
    return service


def _gpus(image: Image) -> list[Gpu]:
    """One GPU, named by the caller's variable, for an image that uses GPUs."""
    if image.vendor == "nvidia":
        return [Gpu(vendor="nvidia", index=0, uuid="${LAB_GPU:-0}")]
    if image.vendor == "amd":
        return [Gpu(vendor="amd", index=0, uuid="GPU-0", render_node=f"/dev/dri/${{LAB_RENDER:-{NO_NODE}}}")]
    return []


def gpu_environment(gpu: Gpu) -> dict[str, str]:
    """The variables that name this GPU. Raises GpuError where one group does not open all of its nodes."""
    if gpu.vendor == "nvidia":
        return {"LAB_GPU": gpu.uuid}
    node = Path(gpu.render_node or "")
    kfd = node.parent.parent / "kfd"
    with_groups = {path: path.stat().st_gid for path in (kfd, node) if path.exists()}
    if len(set(with_groups.values())) != 1:
        found = ", ".join(f"{path}: {gid}" for path, gid in with_groups.items()) or f"{node} does not exist"
        raise GpuError(
            "the GPU's nodes are not of one group, which compose could name",
            where=found,
            fix="use lab run --image, which names each group",
        )
    return {"LAB_RENDER": node.name, "RENDER_GID": str(with_groups[node])}


def _service(spec: ContainerSpec) -> dict[str, Any]:
    """The spec as a service of compose; what is not requested is left out."""
    service: dict[str, Any] = {
        "image": spec.image,
        "pull_policy": "never",  # `lab setup` brings images, `lab images build` makes them; nothing else does
        "command": list(spec.command),
        "user": USER,
        "group_add": list(spec.group_add),
        "working_dir": spec.working_dir,
        "environment": {name: value for name, value in spec.env.items() if name != GIVEN},  # not known
        "volumes": [f"{m.source}:{m.target}" + (":ro" if m.read_only else "") for m in spec.mounts],
        "devices": list(spec.devices),
        "deploy": _reservation(spec),
        "read_only": spec.read_only,
        "tmpfs": [f"{target}:{options}" for target, options in spec.tmpfs.items()],
        "init": spec.init,
        "cap_drop": list(spec.cap_drop),
        "security_opt": list(spec.security_opt),
        "ipc": spec.ipc_mode if spec.ipc_mode == "host" else None,
        "shm_size": spec.shm_size,
        "pids_limit": spec.pids_limit,
        "ulimits": dict(spec.ulimits),
        "network_mode": spec.network_mode,
        "hostname": spec.hostname,
        "extra_hosts": [f"{name}:{address}" for name, address in spec.extra_hosts.items()],
        "stop_signal": spec.stop_signal,
    }
    return {key: value for key, value in service.items() if value not in (None, [], {})}


def _reservation(spec: ContainerSpec) -> dict[str, Any]:
    devices = [
        {"driver": r.driver, "device_ids": list(r.device_ids), "capabilities": list(r.capabilities[0])}
        for r in spec.device_requests
    ]
    return {"resources": {"reservations": {"devices": devices}}} if devices else {}


class _Plain(yaml.SafeDumper):
    """Repeats what is used twice, because an alias (*id001) tells a reader nothing."""

    def ignore_aliases(self, data: object) -> bool:
        return True


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
