"""Write compose/compose.yaml from the images' own data: python scripts/compose.py, or `make compose`.

Each container gets what `lab run` would give it, with the host's paths, user and GPUs as variables. The file
uses only what docker-compose 1.29 and compose v2 both read.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from lab.core.files import write_atomic
from lab.core.gpu import GIVEN, Gpu
from lab.core.step import Step
from lab.images import spec as images
from lab.images.container import ContainerSpec, HostContext, container_spec
from lab.images.spec import Image
from lab.images.targets import ROOT

FILE = ROOT / "compose/compose.yaml"
HEADER = """\
# Written by `make compose` from images/*/image.toml: change those, not this file. `make compose-up` runs:
#
#   docker compose -f compose/compose.yaml run --rm cpu           a small sweep
#   docker compose -f compose/compose.yaml run --rm analysis      its analysis
#
# What you type instead of their command runs with the same devices and folders:
#   docker compose -f compose/compose.yaml run --rm cuda lab run --analysis none -o /out/mine sweep -c 28
#   docker compose -f compose/compose.yaml run --rm analysis lab analyze /out/mine
#
# Services: {services}, analysis. `lab setup` or `lab images build` brings their images: nothing is pulled.
# Containers are offline; a model of the Hub: HF_HUB_CACHE=experiments/.cache/hf lab fetch MODEL
# Variables: UID and GID (the owner of the results), LAB_EXPERIMENTS, LAB_CACHE, LAB_RUN (the run's name),
# LAB_PROFILE (whose run is analysed); for NVIDIA LAB_GPU (index, UUID or MIG instance; 0 if not set);
# for AMD LAB_RENDER (its node, such as renderD128) and RENDER_GID (the node's group). Those of this machine:
#   env $(python scripts/images.py gpu-env rocm70) docker compose -f compose/compose.yaml run --rm rocm70
# Each service uses one GPU; for several: lab run --image. A folder that the engine had to make is root's:
# NAME-folders, which starts first and may do nothing else, hands it to UID and GID.
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
USER = "${UID:-1000}:${GID:-1000}"
RUN_FOLDER = "/out/${LAB_RUN:-compose}_"


def render() -> str:
    """The text of compose.yaml: what all services share stands once, under an anchor."""
    services = {name: _workload(images.load(name)) for name in images.names()}
    services["analysis"] = _analysis()
    for name, service in services.items():
        service["depends_on"] = {f"{name}-folders": {"condition": "service_completed_successfully"}}
    common = _shared(list(services.values()))
    environment = _shared([service["environment"] for service in services.values()])
    parts = [
        HEADER.format(services=", ".join(images.names())),
        f"x-environment: &environment\n{_yaml(environment, 2)}",
        f"x-service: &service\n{_yaml(common, 2)}",
        "services:\n",
    ]
    for name, service in services.items():
        particular = {key: value for key, value in service.items() if key not in (*common, "environment")}
        own_environment = {k: v for k, v in service["environment"].items() if k not in environment}
        parts.append(f"  {name}:\n    <<: *service\n{_yaml(particular, 4)}")
        parts.append(f"    environment:\n      <<: *environment\n{_yaml(own_environment, 6)}")
        parts.append(f"  {name}-folders:\n{_yaml(_folders(service), 4)}")
    return "".join(parts)


def _folders(service: Mapping[str, Any]) -> dict[str, Any]:
    """What hands the folders of a service to the caller, where the engine has just made them as root's."""
    targets = [volume.rsplit(":", 1)[1] for volume in service["volumes"] if not volume.endswith(":ro")]
    command = f"for f in {' '.join(targets)}; do [ $$(stat -c %u $$f) != 0 ] || chown {USER} $$f; done"
    return {
        "profiles": service["profiles"],
        "image": service["image"],
        "pull_policy": "never",
        "command": ["sh", "-c", command],
        "user": "0:0",
        "volumes": [volume for volume in service["volumes"] if not volume.endswith(":ro")],
        "read_only": True,
        "cap_drop": ["ALL"],
        "cap_add": ["CHOWN"],
        "security_opt": ["no-new-privileges:true"],
        "network_mode": "none",
    }


def _shared(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What every mapping says alike."""
    return {
        key: value
        for key, value in mappings[0].items()
        if all(key in mapping and mapping[key] == value for mapping in mappings)
    }


def _yaml(mapping: Mapping[str, Any], indent: int) -> str:
    """Block style; a list of plain words on one line."""
    text = "".join(
        yaml.dump(
            {key: value},
            Dumper=_Plain,
            sort_keys=False,
            width=1000,
            default_flow_style=None if isinstance(value, list) else False,
        )
        for key, value in mapping.items()
    )
    return textwrap.indent(text, " " * indent)


class _Plain(yaml.SafeDumper):
    """Repeats what is used twice: anchors are set by hand, with names that tell a reader something."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _workload(image: Image) -> dict[str, Any]:
    """A sweep of one configuration, on two ranks where it needs no GPU; a second start runs nothing again."""
    gpus = _gpus(image)
    of_run = ("--analysis", "none", "--output-dir", f"{RUN_FOLDER}{image.name}")
    of_sweep = f"-c 28 -t 256 --ranks {len(gpus) or 2} --skip-existing".split()
    argv = ("lab", "run", *of_run, "sweep", *of_sweep)
    spec = container_spec(image, Step(name="sweep", argv=argv, num_gpus=len(gpus)), gpus, HOST)
    return {"profiles": [image.name], **_service(spec)}


def _analysis() -> dict[str, Any]:
    """One for all images: analysis depends on no GPU, and needs neither models nor a network."""
    cpu = images.load("cpu")
    argv = ("lab", "analyze", f"{RUN_FOLDER}${{LAB_PROFILE:-cpu}}")
    service = _service(container_spec(cpu, Step(name="analysis", argv=argv), [], HOST))
    volumes = [volume for volume in service["volumes"] if not volume.endswith(":/hf:ro")]
    return {
        "profiles": ["analysis"],
        **service,
        "image": cpu.ref,
        "network_mode": "none",
        "volumes": volumes,
    }


def _gpus(image: Image) -> list[Gpu]:
    """One GPU, named by the caller's variable, for an image that uses GPUs."""
    if image.vendor == "nvidia":
        return [Gpu(vendor="nvidia", index=0, uuid="${LAB_GPU:-0}")]
    if image.vendor == "amd":
        return [Gpu(vendor="amd", index=0, uuid="GPU-0", render_node=f"/dev/dri/${{LAB_RENDER:-{NO_NODE}}}")]
    return []


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


if __name__ == "__main__":
    write_atomic(FILE, render())
