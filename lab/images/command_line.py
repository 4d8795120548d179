"""A ContainerSpec as the command line of docker and podman, which is the same for both."""

from __future__ import annotations

from lab.images.container import ContainerSpec, DeviceRequest


def arguments_of(spec: ContainerSpec) -> list[str]:
    """What follows `docker run` or `podman create`: the options, the image and its command."""
    pairs = [
        ("--user", spec.user),
        ("--workdir", spec.working_dir),
        ("--network", spec.network_mode),
        ("--ipc", spec.ipc_mode),
        ("--stop-signal", spec.stop_signal),
    ]
    pairs += [("--hostname", spec.hostname)] if spec.hostname else []
    pairs += [("--add-host", f"{name}:{address}") for name, address in spec.extra_hosts.items()]
    pairs += [("--shm-size", spec.shm_size)] if spec.shm_size else []
    pairs += [("--memory", spec.mem_limit)] if spec.mem_limit else []
    pairs += [("--pids-limit", str(spec.pids_limit))]
    pairs += [("--userns", spec.userns_mode)] if spec.userns_mode else []
    pairs += [("--env", f"{name}={value}") for name, value in spec.env.items()]
    pairs += [
        ("--mount", f"type=bind,src={m.source},dst={m.target}" + (",readonly" if m.read_only else ""))
        for m in spec.mounts
    ]
    pairs += [("--tmpfs", f"{target}:{options}") for target, options in spec.tmpfs.items()]
    pairs += [("--device", device) for device in spec.devices]
    for request in spec.device_requests:
        pairs += _by_cdi(request) if request.driver == "cdi" else _by_toolkit(request)
    pairs += [("--group-add", group) for group in spec.group_add]
    pairs += [("--cap-drop", name) for name in spec.cap_drop] + [("--cap-add", name) for name in spec.cap_add]
    pairs += [("--security-opt", option) for option in spec.security_opt]
    pairs += [("--ulimit", f"{name}={value}") for name, value in spec.ulimits.items()]
    flags = [flag for flag, on in (("--read-only", spec.read_only), ("--init", spec.init)) if on]
    command = spec.command
    if spec.overrides_entrypoint:
        pairs, command = [*pairs, ("--entrypoint", command[0])], command[1:]
    return [*flags, *(word for pair in pairs for word in pair), spec.image, *command]


def _by_cdi(request: DeviceRequest) -> list[tuple[str, str]]:
    return [("--device", name) for name in request.device_ids]


def _by_toolkit(request: DeviceRequest) -> list[tuple[str, str]]:
    gpus, capabilities = ",".join(request.device_ids), ",".join(request.capabilities[0])
    return [("--gpus", f'"device={gpus}","capabilities={capabilities}"')]
