"""One container: made from its ContainerSpec and nothing else, watched to its end, and removed."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import docker
import msgspec
import requests
from docker.errors import APIError, DockerException, NotFound
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from lab.core.step import Step
from lab.core.stop import Stop, reason_to_stop
from lab.engines.docker.errors import Context, known_error, lost, translate, translated
from lab.engines.docker.logs import LogFollower
from lab.engines.log_writer import LogWriter
from lab.engines.verdict import oom_kills_since
from lab.errors import EngineError
from lab.images.command_line import arguments_of
from lab.images.container import ContainerSpec

POLL_S = 0.1  # how soon a limit or a Ctrl-C is noticed; the end of a container is noticed at once
FOLLOW_AFTER_S = 0.25  # a step that ends sooner is read once, after its end
# Of a container that somebody removes while its log or state is asked for.
GONE = re.compile(r"marked for removal|removal of container .* in progress|no such container", re.IGNORECASE)
NO_MEMLOCK = "error setting rlimit type 8"
PODMAN_TIMEOUT_S = 120
OOM_NEWS_S = 5.0  # a daemon may learn of an end before it learns that a memory limit was hit
CLOCK_WAS_SET_S = 30.0  # more than a daemon and its watcher differ on a busy machine
FAILURES = (DockerException, requests.exceptions.RequestException)


@dataclass(frozen=True)
class End:
    """How a container ended. `stopped_by` is set when lab ended it."""

    exit_code: int
    seconds: float
    started_utc: str
    limit_hit: bool | None  # its own memory limit killed a process; None: it has no limit
    stopped_by: str | None = None


def start(
    client: docker.APIClient,
    spec: ContainerSpec,
    *,
    name: str,
    labels: Mapping[str, str],
    context: Context,
    stdin: bytes | None = None,
    podman: str | None = None,
) -> tuple[str, list[str]]:
    """Create and start, with `stdin` as what it reads there; -> its id, and warnings about what had to be
    left out. `podman` is its endpoint.

    A container that does not start is removed. Raises BusyError when one of this name exists: the name is
    the lock of a run's step.
    """
    try:
        return _start(client, spec, name, labels, context, stdin, podman), []
    except EngineError as error:
        explanation = str(getattr(error.__cause__, "explanation", ""))
        if "memlock" not in spec.ulimits or NO_MEMLOCK not in explanation:
            raise
        limits = {key: value for key, value in spec.ulimits.items() if key != "memlock"}
        warning = f"the step runs with the default limit of locked memory ({error.what})"
    fewer = msgspec.structs.replace(spec, ulimits=limits)
    return _start(client, fewer, name, labels, context, stdin, podman), [warning]


def start_waiting(
    client: docker.APIClient,
    spec: ContainerSpec,
    *,
    name: str,
    labels: Mapping[str, str],
    context: Context,
) -> tuple[str, Any]:
    """Create and start a container that reads its standard input; -> its id and the connection to that.

    When the connection closes, the container's input ends; when the container ends, the engine removes it.
    """
    with translated(context):
        container = _create(client, spec, name, labels, reads=True, auto_remove=True)
        try:
            wire = client.attach_socket(container, params={"stdin": 1, "stream": 1})
            client.start(container)
        except FAILURES:
            remove(client, container)
            raise
    return container, wire


def runs(client: docker.APIClient, container: str, context: Context) -> bool:
    with translated(context):
        try:
            return bool(client.inspect_container(container)["State"]["Running"])
        except NotFound:
            return False


def _start(
    client: docker.APIClient,
    spec: ContainerSpec,
    name: str,
    labels: Mapping[str, str],
    context: Context,
    stdin: bytes | None,
    podman: str | None,
) -> str:
    by_cdi = any(request.driver == "cdi" for request in spec.device_requests)
    with translated(context):
        if podman and by_cdi:
            container = _create_by_podman(podman, spec, name, labels, context)
        else:
            container = _create(client, spec, name, labels, reads=stdin is not None)
        try:
            with _feeding(client, container, stdin):
                client.start(container)
        except APIError:
            client.remove_container(
                container, v=True, force=True
            )  # otherwise it would remain in the state `created`
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
    client: docker.APIClient,
    spec: ContainerSpec,
    name: str,
    labels: Mapping[str, str],
    *,
    reads: bool,
    auto_remove: bool = False,
) -> str:
    made = client.create_container(
        spec.image,
        list(spec.command),
        name=name,
        labels=dict(labels),
        user=spec.user,
        hostname=spec.hostname,
        environment=spec.env,
        working_dir=spec.working_dir,
        stop_signal=spec.stop_signal,
        stdin_open=reads,
        host_config=_host_config(client, spec) | ({"AutoRemove": True} if auto_remove else {}),
    )
    return str(made["Id"])


def _create_by_podman(
    endpoint: str, spec: ContainerSpec, name: str, labels: Mapping[str, str], context: Context
) -> str:
    """The same through podman's own program: its answers to Docker's API know no CDI, and some ignore it."""
    words = ["--name", name, "--log-driver", "k8s-file"]
    words += [word for pair in labels.items() for word in ("--label", "=".join(pair))]
    argv = ["podman", "--remote", "--url", endpoint, "create", *words, *arguments_of(spec)]
    try:
        done = subprocess.run(
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
    if done.returncode:
        raise known_error(done.stderr.strip(), context)
    return done.stdout.strip()


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
        group_add=list(spec.group_add),
        security_opt=list(spec.security_opt),
        cap_drop=list(spec.cap_drop),
        cap_add=list(spec.cap_add),
        read_only=spec.read_only,
        init=spec.init,
        ipc_mode=spec.ipc_mode,
        shm_size=spec.shm_size,
        mem_limit=spec.mem_limit,
        memswap_limit=spec.mem_limit,
        pids_limit=spec.pids_limit,
        tmpfs=spec.tmpfs,
        network_mode=spec.network_mode,
        extra_hosts=spec.extra_hosts or None,
        ulimits=[Ulimit(name=name, soft=value, hard=value) for name, value in spec.ulimits.items()],
        log_config=LogConfig(type="json-file", config={}),
    )
    # Not an argument, because the SDK knows only Docker's one value, "host".
    return config | ({"UsernsMode": spec.userns_mode} if spec.userns_mode else {})


class Watch:
    """Follows a container that runs or has ended: its output into the log, its end into an End."""

    def __init__(
        self,
        client: docker.APIClient,
        container: str,
        log: LogWriter,
        context: Context,
        kills_before: int | None = None,
    ) -> None:
        self._client, self._container, self._log, self._context = client, container, log, context
        self._kills_before = kills_before
        self._wait = _Call(lambda: client.wait(container))
        self._follower = LogFollower(client, container, log)
        self._stopping: _Call | None = None

    def to_the_end(self, step: Step, stop: Stop, *, grace_s: float, ran_s: float = 0.0) -> End:
        """Until it has ended and its last line is logged; limits and `stop` end it earlier.

        Raises EngineLost when the engine goes away meanwhile, EngineError when the container is removed
        from outside.
        """
        self._wait.start()
        if not self._wait.ended.wait(FOLLOW_AFTER_S):
            self._follower.start()
        began = time.monotonic() - ran_s
        try:
            stopped_by = self._watch(step, stop, grace_s, began)
            watched_s = time.monotonic() - began
            if self._wait.error is not None:
                raise _unanswered(self._wait.error, self._context)
            self._follower.finish()
            return self._end(stopped_by, watched_s)
        finally:
            self._follower.give_up()

    def _watch(self, step: Step, stop: Stop, grace_s: float, began: float) -> str | None:
        stopped_by: str | None = None
        timeout_s = max(1, round(grace_s))  # whole seconds; 0 would kill it at once
        while not self._wait.ended.wait(POLL_S):
            now = time.monotonic()
            if stopped_by is None:
                stopped_by = reason_to_stop(
                    step,
                    stop,
                    ran_s=now - began,
                    silent_s=now - self._log.last_line,
                    disk_full=self._log.error is not None,
                )
                if stopped_by:
                    # The daemon itself kills it after the grace period, even if this driver is dead by then.
                    self._stopping = _Call(lambda: self._client.stop(self._container, timeout=timeout_s))
                    self._stopping.start()
            elif self._stopping and self._stopping.error is not None:
                raise _unanswered(self._stopping.error, self._context)
            elif stop.at_once:
                self._kill()
        return stopped_by

    def _kill(self) -> None:
        try:
            self._client.kill(self._container)
        except FAILURES as error:
            if not (isinstance(error, APIError) and error.status_code == 409):  # it has just ended by itself
                raise _unanswered(error, self._context) from error

    def _inspected(self) -> dict[str, Any]:
        """The container as it ended; where the kernel killed something, with the news of its memory limit."""
        until = time.monotonic() + OOM_NEWS_S
        found: dict[str, Any] = self._client.inspect_container(self._container)
        while _hit_unsaid(found) and oom_kills_since(self._kills_before) and time.monotonic() < until:
            time.sleep(0.1)
            found = self._client.inspect_container(self._container)
        return found

    def _end(self, stopped_by: str | None, watched_s: float) -> End:
        if self._follower.error is not None:
            raise _unanswered(self._follower.error, self._context)
        try:
            found = self._inspected()
        except FAILURES as error:
            raise _unanswered(error, self._context) from error
        state = found["State"]
        if (began := _begun(state)) is None:  # podman reports only now that it could not start it
            raise translate(
                DockerException(state.get("Error") or "the container never started"), context=self._context
            )
        killed = bool(state.get("OOMKilled"))
        return End(
            exit_code=int(state["ExitCode"]),
            stopped_by=stopped_by,
            limit_hit=killed if killed or found["HostConfig"].get("Memory") else None,
            seconds=_lasted_s((moment(state["FinishedAt"]) - began).total_seconds(), watched_s),
            started_utc=began.isoformat(timespec="milliseconds"),
        )


def _hit_unsaid(found: Mapping[str, Any]) -> bool:
    """It has a memory limit, and its daemon does not say that it was hit."""
    return bool(found["HostConfig"].get("Memory")) and not found["State"].get("OOMKilled")


def _lasted_s(by_daemon_s: float, watched_s: float) -> float:
    """What the daemon's clock says, unless that clock was set meanwhile: then how long it was watched.

    The daemon records the start late: a process of a millisecond may seem to end before it began.
    """
    return max(0.0, by_daemon_s) if abs(by_daemon_s - watched_s) < CLOCK_WAS_SET_S else watched_s


def remove(client: docker.APIClient, container: str) -> str | None:
    """Remove it, killing it if it still runs; -> why that failed, or None."""
    try:
        client.remove_container(container, v=True, force=True)
    except FAILURES as error:
        if isinstance(error, APIError) and error.status_code in (404, 409):  # gone, or being removed just now
            return None
        return f"cannot remove container {container[:12]}: {error}; remove it later with `lab runs stop`"
    return None


def running_for(client: docker.APIClient, container: str, context: Context) -> float | None:
    """Seconds since it was started; None if it never was."""
    with translated(context):
        began = _begun(client.inspect_container(container)["State"])
    return (datetime.now(timezone.utc) - began).total_seconds() if began else None


def _begun(state: Mapping[str, Any]) -> datetime | None:
    return None if state["StartedAt"].startswith("0001-") else moment(state["StartedAt"])


def moment(text: str) -> datetime:
    """The daemon's RFC 3339 time with up to nine decimals, as UTC."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    if match is None:
        raise EngineError(f"unparseable timestamp from the engine: {text!r}")
    zone = match[3].replace("Z", "+00:00")
    micros = (match[2] or ".0")[1:7].ljust(6, "0")
    return datetime.fromisoformat(f"{match[1]}.{micros}{zone}").astimezone(timezone.utc)


def _unanswered(error: Exception, context: Context) -> Exception:
    """The error for a request about a running container that was not answered."""
    if isinstance(error, NotFound) or (isinstance(error, APIError) and GONE.search(str(error.explanation))):
        return EngineError(
            f"the container of step {context.step!r} was removed from outside, and its result with it",
            fix="run the step again with lab run --resume",
        )
    if isinstance(error, APIError):
        return translate(error, context=context)
    return lost(context, str(error)) if isinstance(error, FAILURES) else error


class _Call(threading.Thread):
    """A blocking request on a thread of its own; `ended` is set when it is over."""

    def __init__(self, request: Callable[[], object]) -> None:
        super().__init__(daemon=True, name="lab-docker")
        self._request = request
        self.ended = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._request()
        except Exception as error:  # noqa: BLE001 - kept for the thread that waits
            self.error = error
        finally:
            self.ended.set()
