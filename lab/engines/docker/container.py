"""One container: made from its ContainerSpec and nothing else, started, and removed."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import docker
import msgspec
import requests
from docker.errors import APIError
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from lab.engines.docker.client import Daemon
from lab.engines.docker.errors import FAILURES, Context, lost, translate_message, translated
from lab.errors import EngineError
from lab.images.command_line import arguments_of
from lab.images.container import ContainerSpec

NO_MEMLOCK = "error setting rlimit type 8"  # of a dockerd without CAP_SYS_RESOURCE
PODMAN_TIMEOUT_S = 120


def start(
    daemon: Daemon,
    spec: ContainerSpec,
    *,
    name: str,
    labels: Mapping[str, str],
    context: Context,
    stdin: bytes | None = None,
) -> tuple[str, list[str]]:
    """Create and start a container that reads `stdin`; -> its id, and warnings about what was left out.

    A container that does not start is removed. Raises BusyError when one of this name exists: the name is
    the lock of a run's step.
    """
    try:
        return _start(daemon, spec, name, labels, context, stdin), []
    except EngineError as error:
        explanation = str(getattr(error.__cause__, "explanation", ""))
        if "memlock" not in spec.ulimits or NO_MEMLOCK not in explanation:
            raise
        limits = {key: value for key, value in spec.ulimits.items() if key != "memlock"}
        warning = f"the step runs with the default limit of locked memory ({error.problem})"
    fewer = msgspec.structs.replace(spec, ulimits=limits)
    return _start(daemon, fewer, name, labels, context, stdin), [warning]


def _start(
    daemon: Daemon,
    spec: ContainerSpec,
    name: str,
    labels: Mapping[str, str],
    context: Context,
    stdin: bytes | None,
) -> str:
    client = daemon.client
    by_cdi = any(request.driver == "cdi" for request in spec.device_requests)
    with translated(context):
        if daemon.is_podman and by_cdi:
            container = _create_by_podman(daemon.endpoint, spec, name, labels, context)
        else:
            container = _create(client, spec, name, labels, reads=stdin is not None)
        try:
            with _feeding(client, container, stdin):
                client.start(container)
        except APIError:
            # Otherwise it would remain in the state `created`.
            client.remove_container(container, v=True, force=True)
            raise
        except requests.exceptions.RequestException as error:  # no answer: it may have started nevertheless
            raise lost(dataclasses.replace(context, container=container), str(error)) from error
    return container


@contextlib.contextmanager
def _feeding(client: docker.APIClient, container: str, stdin: bytes | None) -> Iterator[None]:
    """Start the container within this block; then `stdin` and its end are sent.

    Attached first, so that a driver that dies at any moment leaves the container an empty, closed input.
    """
    if stdin is None:
        yield
        return
    attached: Any = client.attach_socket(container, params={"stdin": 1, "stream": 1})
    try:
        yield
    except BaseException:
        attached.close()
        raise
    # On a thread of its own: a container that ends without reading would block the driver for ever.
    threading.Thread(target=_send, args=(attached, stdin), daemon=True, name="lab-stdin").start()


def _send(attached: Any, stdin: bytes) -> None:
    wire = getattr(attached, "_sock", attached)  # the SDK hands out a read-only file around the socket
    with contextlib.closing(attached), contextlib.suppress(OSError):  # it has ended already
        wire.sendall(stdin)
        wire.shutdown(socket.SHUT_WR)


def _create(
    client: docker.APIClient, spec: ContainerSpec, name: str, labels: Mapping[str, str], *, reads: bool
) -> str:
    created = client.create_container(
        spec.image,
        list(spec.command[1:] if spec.overrides_entrypoint else spec.command),
        entrypoint=[spec.command[0]] if spec.overrides_entrypoint else None,
        name=name,
        labels=dict(labels),
        user=spec.user,
        hostname=spec.hostname,
        environment=spec.env,
        working_dir=spec.working_dir,
        stop_signal=spec.stop_signal,
        stdin_open=reads,
        host_config=_host_config(client, spec),
    )
    return str(created["Id"])


def _create_by_podman(
    endpoint: str, spec: ContainerSpec, name: str, labels: Mapping[str, str], context: Context
) -> str:
    """The same through podman's own program, because its API for Docker's clients ignores CDI."""
    words = ["--name", name, "--log-driver", "k8s-file"]
    words += [word for pair in labels.items() for word in ("--label", "=".join(pair))]
    argv = ["podman", "--remote", "--url", endpoint, "create", *words, *arguments_of(spec)]
    try:
        completed = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=PODMAN_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(
            f"podman cannot be asked for GPUs by CDI: {error}", fix="install podman where lab runs"
        ) from error
    if completed.returncode:
        raise translate_message(completed.stderr.strip(), context)
    return completed.stdout.strip()


def _host_config(client: docker.APIClient, spec: ContainerSpec) -> dict[str, Any]:
    config: dict[str, Any] = client.create_host_config(
        mounts=[Mount(m.target, m.source, type="bind", read_only=m.read_only) for m in spec.mounts],
        devices=list(spec.devices),
        device_requests=[
            DeviceRequest(
                driver=r.driver, device_ids=list(r.device_ids), capabilities=[list(c) for c in r.capabilities]
            )
            for r in spec.device_requests
        ],
        memswap_limit=spec.mem_limit,
        group_add=list(spec.group_add),
        security_opt=list(spec.security_opt),
        cap_drop=list(spec.cap_drop),
        cap_add=list(spec.cap_add),
        read_only=spec.read_only,
        init=spec.init,
        ipc_mode=spec.ipc_mode,
        shm_size=spec.shm_size,
        mem_limit=spec.mem_limit,
        pids_limit=spec.pids_limit,
        tmpfs=spec.tmpfs,
        network_mode=spec.network_mode,
        extra_hosts=spec.extra_hosts or None,
        ulimits=[Ulimit(name=name, soft=value, hard=value) for name, value in spec.ulimits.items()],
        log_config=LogConfig(type="json-file", config={}),
    )
    # Not an argument, because the SDK knows only Docker's one value, "host".
    return config | ({"UsernsMode": spec.userns_mode} if spec.userns_mode else {})


def remove(client: docker.APIClient, container: str) -> str | None:
    """Remove it, killing it if it still runs; -> why that failed, or None."""
    try:
        client.remove_container(container, v=True, force=True)
    except FAILURES as error:
        if isinstance(error, APIError) and error.status_code in (404, 409):  # gone, or being removed just now
            return None
        return f"cannot remove container {container[:12]}: {error}; remove it later with `lab runs stop`"
    return None
