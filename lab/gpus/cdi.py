"""The names of this host's GPUs in its CDI specifications, by which an engine can be asked for them.

The specifications are written by `nvidia-ctk cdi generate` and `amd-ctk cdi generate`. LAB_CDI_DIRS names
other folders than the usual ones, separated by colons.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from lab.core.gpu import Gpu
from lab.gpus.selection import nvidia_names

FOLDERS = ("/etc/cdi", "/var/run/cdi")
KINDS = ("nvidia.com/gpu", "amd.com/gpu")
Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a specification of eight GPUs has 5,000 lines


class Devices(msgspec.Struct, frozen=True):
    """What the specifications name: qualified name -> its device nodes; and which files cannot be read."""

    nodes: dict[str, frozenset[str]]
    problems: tuple[str, ...] = ()


def read_cdi(env: Mapping[str, str] | None = None) -> Devices:
    """All GPUs that the host's CDI specifications name. A bad file does not hide the others.

    As engines read them: a later folder goes before an earlier one, and what two files of one folder name
    is given to no container.
    """
    env = os.environ if env is None else env
    nodes: dict[str, frozenset[str]] = {}
    named_in: dict[str, Path] = {}
    problems: list[str] = []
    for path in _files(env):
        try:
            devices = _devices(_parsed(path))
            twice = {name for name in devices if name in named_in and named_in[name].parent == path.parent}
            for name in sorted(twice):
                problems.append(f"{path}: {name} is also in {named_in[name].name}: engines refuse it")
                nodes.pop(name, None)
            nodes |= {name: devices[name] for name in devices.keys() - twice}
            named_in |= dict.fromkeys(devices, path)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
            problems.append(f"not read: {path}: {type(error).__name__}: {str(error).splitlines()[0]}")
    return Devices(nodes, tuple(problems))


def with_cdi_names(gpus: Sequence[Gpu], devices: Devices) -> list[Gpu]:
    """The GPUs with the names they have in these specifications."""
    return [msgspec.structs.replace(gpu, cdi=_name_of(gpu, devices)) for gpu in gpus]


def _name_of(gpu: Gpu, devices: Devices) -> str | None:
    if gpu.vendor == "nvidia":
        return next((name for name in nvidia_names(gpu) if name in devices.nodes), None)
    # AMD numbers GPUs in an order of its own, so a name is this GPU's if its only render node is.
    node = f"/dev/dri/{Path(gpu.render_node or '').name}"
    amd = sorted(name for name in devices.nodes if name.startswith("amd.com/gpu="))
    return next((name for name in amd if _render_nodes(devices.nodes[name]) == {node}), None)


def _render_nodes(nodes: Iterable[str]) -> set[str]:
    return {node for node in nodes if node.startswith("/dev/dri/renderD")}


def _files(env: Mapping[str, str]) -> list[Path]:
    folders = value.split(os.pathsep) if (value := env.get("LAB_CDI_DIRS")) else FOLDERS
    paths = (path for folder in folders for path in sorted(Path(folder).glob("*")))
    return [path for path in paths if path.suffix in (".json", ".yaml", ".yml")]


def _parsed(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    return dict(json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=Loader))


def _devices(spec: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    if spec["kind"] not in KINDS:
        return {}
    nodes = {f"{spec['kind']}={device['name']}": _nodes(device) for device in spec["devices"]}
    if len(nodes) != len(spec["devices"]):
        raise ValueError("it names a device twice")
    return nodes


def _nodes(device: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(node["path"] for node in (device.get("containerEdits") or {}).get("deviceNodes") or ())
