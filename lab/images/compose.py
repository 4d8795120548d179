"""compose/compose.yaml, written from the images' own data: the same decision as `lab run` makes gives each container
what it needs, with the host's paths, user and GPUs as variables.

Only what docker-compose 1.29 and compose v2 both read is used.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from lab.core.gpu import Gpu
from lab.core.step import Step
from lab.images import spec as images
from lab.images.spec import ContainerSpec, HostContext, Image, container_spec

FILE = Path("compose/compose.yaml")
HEADER = """\
# Written by `make compose` from images/*/image.toml: change those, not this file.
#
#   mkdir -p experiments/.cache/hf experiments/.cache/lab          once: the engine would make them root's
#   docker compose -f compose/compose.yaml --profile cpu up         or both: make compose-up
#
# Profiles: {profiles}. Each runs a small sweep and then its analysis, in images that `lab images build` made.
# Profiles that end in -shell stay up, for work of your own with the same devices and folders:
#   docker compose -f compose/compose.yaml --profile cuda-shell up -d
#   docker compose -f compose/compose.yaml exec cuda-shell lab sweep -c 28,42 --no-analysis --output-dir /out/mine
#   docker compose -f compose/compose.yaml exec analysis lab analyze /out/mine
# Variables: UID, GID (the results are theirs), LAB_EXPERIMENTS, LAB_CACHE, LAB_RUN, LAB_GPU0 and LAB_GPU1 (NVIDIA: index
# or UUID), LAB_RENDER0, LAB_RENDER1, VIDEO_GID, RENDER_GID (AMD: nodes in /dev/dri and the numeric groups that own them).
"""
RANKS = 2
HOST = HostContext(
    run_dir="${LAB_EXPERIMENTS:-../experiments}",
    hf_cache="${LAB_CACHE:-../experiments/.cache}/hf",
    cache="${LAB_CACHE:-../experiments/.cache}/lab",
    uid=0,  # given as variables below
    gid=0,
    device_gids=("${VIDEO_GID:-44}", "${RENDER_GID:-109}"),
)
WAIT = ("sleep", "infinity")
# That lab starts at all: the interpreter, its packages and the file system are there.
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
    """Profile and service of the container of this image that stays up."""
    return f"{name}-shell"


def program() -> list[str] | None:
    """How compose is called here: v2 as docker's part, else the older program."""
    docker = shutil.which("docker")
    if (
        docker
        and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0
    ):
        return [docker, "compose"]
    older = shutil.which("docker-compose")
    return [older] if older else None


def _workload(image: Image) -> dict[str, Any]:
    """A sweep of one setting on two ranks; a second `up` finds its results and runs nothing again."""
    argv = (
        "lab",
        "sweep",
        "-c",
        "28",
        "-t",
        "256",
        "--ranks",
        str(RANKS),
        "--skip-existing",
        "--no-analysis",
        "--output-dir",
        f"/out/{RUN}{image.name}",
    )
    gpus = _gpus(image)
    spec = container_spec(image, Step(name="sweep", argv=argv, num_gpus=len(gpus)), gpus, HOST)
    return {"profiles": [image.name], **_service(spec)}


def _analysis(image: Image) -> dict[str, Any]:
    """Starts only when the workload has succeeded."""
    service = _analysing("lab", "analyze", f"/out/{RUN}{image.name}")
    return {
        "profiles": [image.name],
        **service,
        "depends_on": {image.name: {"condition": "service_completed_successfully"}},
    }


def _shell(image: Image) -> dict[str, Any]:
    """The workload's container without its work: it waits for `exec`."""
    gpus = _gpus(image)
    spec = container_spec(image, Step(name="shell", argv=WAIT, num_gpus=len(gpus)), gpus, HOST)
    return {"profiles": [shell(image.name)], **_service(spec), "healthcheck": HEALTH}


def _standing_analysis() -> dict[str, Any]:
    """One for all images: what it reads does not tell which GPU it is of."""
    return {"profiles": [shell(name) for name in profiles()], **_analysing(*WAIT), "healthcheck": HEALTH}


def _analysing(*argv: str) -> dict[str, Any]:
    """Analysis needs neither GPU nor network."""
    cpu = images.load("cpu")
    step = Step(name="analysis", argv=argv)
    service = _service(container_spec(cpu, step, [], HOST))
    service |= {
        "image": cpu.ref,
        "network_mode": "none",
        "volumes": [volume for volume in service["volumes"] if not volume.endswith(":/hf")],
    }
    return service


def _gpus(image: Image) -> list[Gpu]:
    """Two GPUs that the caller's variables name, where the image is for GPUs."""
    if image.vendor == "nvidia":
        return [Gpu(vendor="nvidia", index=i, uuid=f"${{LAB_GPU{i}:-{i}}}") for i in range(RANKS)]
    if image.vendor == "amd":
        return [
            Gpu(
                vendor="amd",
                index=i,
                uuid=f"GPU-{i}",
                render_node=f"/dev/dri/${{LAB_RENDER{i}:-renderD{128 + i}}}",
            )
            for i in range(RANKS)
        ]
    return []


def _service(spec: ContainerSpec) -> dict[str, Any]:
    """What lab decided for a container, in compose's words; what is not asked for is left out."""
    service: dict[str, Any] = {
        "image": spec.image,
        "command": list(spec.command),
        "user": USER,
        "group_add": list(spec.group_add),
        "working_dir": spec.working_dir,
        "environment": dict(spec.env),
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
        "ulimits": dict(spec.ulimits),
        "network_mode": spec.network_mode,
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
    """Writes what is used twice twice: an alias (*id001) says nothing to a reader."""

    def ignore_aliases(self, data: object) -> bool:
        return True


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
