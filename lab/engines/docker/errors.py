"""What engines, toolkits and the SDK say, translated once into lab's errors: one row a text, matched by substring.

Daemons wrap these texts differently from version to version ("OCI runtime create failed: ... error running hook #0: ..."),
so a row looks for the words of the cause and for nothing around them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import requests
from docker.errors import APIError, DockerException

from lab.errors import BusyError, EngineError, EngineLost, GpuError, LabError, StorageError, UsageError
from lab.secrets import redact, secret_values


def gpus_present() -> str:
    """The GPUs of this machine in a line, for the error about one that is not here."""
    from lab.gpus.discover import discover

    try:
        found = discover()
    except GpuError as error:
        return f"none can be listed: {error.what}"
    return ", ".join(f"{gpu.index} {gpu.name} {gpu.uuid}" for gpu in found) or "none"


@dataclass(frozen=True)
class Context:
    """What lab was doing: what the daemon's text cannot know and its reader needs."""

    endpoint: str
    image: str = ""  # lab's name of it
    ref: str = ""
    step: str = ""
    driver: str = ""  # NVIDIA's, on this host
    run_dir: str = ""
    container: str = ""  # set once there is one
    option_of: Mapping[str, str] = field(
        default_factory=dict
    )  # mounted host path -> the option that named it
    present: Callable[[], str] = gpus_present


@dataclass(frozen=True)
class Row:
    """`{name}` in the words is a group of the pattern, a field of Context, or `text`: what the daemon said."""

    pattern: str
    kind: type[LabError]
    what: str
    fix: str = ""


FAULT = Row(
    "",
    EngineError,
    "a fault in lab: the engine refuses what it was asked for: {text}",
    "report it with this text and the output of the same command with --dry-run --json",
)
ROWS = (
    Row(
        r"could not select device driver.*\[\[.*gpu|Unknown runtime specified nvidia",
        GpuError,
        "NVIDIA's container toolkit is not registered with the Docker engine at {endpoint}",
        "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker, and restart docker",
    ),
    Row(
        r"nvml error: driver not loaded",
        GpuError,
        "NVIDIA's driver is not loaded on this host",
        "run nvidia-smi on the host: it must list the GPUs before containers can have them",
    ),
    Row(
        r"device error: (?P<gpu>.*?):?\s*unknown device",
        GpuError,
        "no such GPU on this machine: {gpu}; present: {present}",
        "pick one of these with --gpus",
    ),
    Row(
        r"unsatisfied condition: cuda\s*>=\s*(?P<needed>[\d.]*\d)",
        GpuError,
        "NVIDIA's driver is too old for the image {image!r}: it needs one for CUDA {needed}, found driver {driver}",
        "update the driver, or choose an image with a lower floor (lab images list; pascal has the lowest)",
    ),
    Row(
        r"adding custom device \"(?P<node>[^\"]*(?:kfd|renderD)[^\"]*)\": no such file",
        GpuError,
        "{node} is not there: this is no host with AMD GPUs, or its amdgpu driver is not loaded",
        "run lab doctor; load the driver with: sudo modprobe amdgpu",
    ),
    Row(
        r"Unable to find group|unable to find user|cannot set both Count and DeviceIDs",
        FAULT.kind,
        FAULT.what,
        FAULT.fix,
    ),
    Row(
        r"bind source path does not exist: (?P<path>.+)",
        UsageError,
        "{option} names a path that the Docker engine does not find: {path}",
        "create it, or name another one",
    ),
    Row(
        r"error setting rlimit type 8",
        EngineError,
        "the engine may not lift the limit of locked memory (memlock)",
        "give dockerd the capability SYS_RESOURCE; lab itself tries again without the limit",
    ),
    Row(
        r"exec: \"(?P<program>[^\"]*)\": (?:stat [^:]*: no such file|executable file not found)",
        EngineError,
        "the image {ref} has no program {program!r}: it is no image of lab, or broken",
        "lab images build {image}",
    ),
    Row(
        r"exec: \"(?P<program>[^\"]*)\": (?:stat [^:]*: )?permission denied",
        EngineError,
        "{program!r} cannot be run in the image {ref}: it is no image of lab, or broken",
        "lab images build {image}",
    ),
    Row(r"does not match the specified platform|Requested CPUs are not available", EngineError, "{text}"),
    Row(
        r"(?:no such host|connection refused|i/o timeout|TLS handshake timeout)",
        EngineError,
        "the image {ref} is not on this engine, and its registry cannot be reached: {text}",
        "lab images build {image}, or bring it with docker load",
    ),
    Row(
        r"no such image|pull access denied|manifest unknown",
        EngineError,
        "the image {ref} is not on this engine",
        "lab images build {image}",
    ),
    Row(
        r"The container name .* is already in use",
        BusyError,
        "the container of step {step!r} is there already",
        "take it up again with lab run --attach {run_dir}, or end it with lab runs stop {run_dir}",
    ),
    Row(
        r"could not find bridge docker0",
        EngineError,
        "the engine has lost its network bridge (docker0)",
        "restart docker: it makes the bridge anew",
    ),
    Row(
        r"client version .*too (?:new|old)",
        EngineError,
        "this Docker engine and lab's client speak no common version: {text}",
        "unset DOCKER_API_VERSION, or upgrade the older one: pip install -U docker, or the engine",
    ),
    Row(
        r"CERTIFICATE_VERIFY_FAILED",
        EngineError,
        "the build does not trust this network's certificate",
        "name the CA file when building: SSL_CERT_FILE=/path/ca.pem lab images build {image}",
    ),
    Row(
        r"the --mount option requires BuildKit|buildx component is missing",
        EngineError,
        "this docker cannot build lab's images: it lacks BuildKit",
        "install docker-buildx (Debian 13: docker-buildx; Docker's own packages: docker-buildx-plugin)",
    ),
    Row(
        r"no space left on device",
        StorageError,
        "no space left on the disk of the Docker engine",
        "free some: docker system df shows what it holds",
    ),
)
UNREACHABLE = (
    Row(
        r"Permission ?(?:Error|denied)",
        EngineError,
        "not allowed to use the Docker engine at {endpoint}",
        "join its group: sudo usermod -aG docker $USER, then log in again; or use a rootless engine by DOCKER_HOST",
    ),
    Row(
        r"timed out|Timeout",
        EngineError,
        "the Docker engine at {endpoint} does not answer in time",
        "see whether `docker info` answers; the engine may be overloaded or hung",
    ),
    Row(
        "",
        EngineError,
        "no Docker engine answers at {endpoint}: {text}",
        "start it (sudo systemctl start docker), or name another one by DOCKER_HOST; without --image steps run here",
    ),
)


@contextlib.contextmanager
def speaking(context: Context) -> Iterator[None]:
    """Around every call to the engine: its errors leave in lab's words."""
    try:
        yield
    except (DockerException, requests.exceptions.RequestException) as error:
        raise translate(error, context=context) from error


def translate(error: Exception, *, context: Context) -> LabError:
    """The error that lab raises for this one of the SDK, the daemon or a build."""
    explanation = error.explanation if isinstance(error, APIError) else None
    text = redact(str(explanation or error).strip(), secret_values())
    if isinstance(error, APIError):
        return _known(text, context) or EngineError(f"the Docker engine says: {text}", where=_where(context))
    if context.container and isinstance(error, requests.exceptions.RequestException):
        return lost(context, text)
    if isinstance(error, requests.exceptions.RequestException) or "fetching server API version" in text:
        return _known(text, context, UNREACHABLE) or EngineError(text)
    return _known(text, context) or EngineError(f"Docker's client says: {text}", where=_where(context))


def lost(context: Context, text: str) -> EngineLost:
    """The engine is gone and took nothing with it: the container lives on where engines leave them running."""
    return EngineLost(
        f"the Docker engine at {context.endpoint} went away while step {context.step!r} ran ({text}); "
        f"its container {context.container[:12]} may live on",
        where=context.run_dir,
        fix=f"when the engine is back: lab run --attach {context.run_dir}",
    )


def _known(text: str, context: Context, rows: tuple[Row, ...] = ROWS) -> LabError | None:
    for row in rows:
        match = re.search(row.pattern, text, re.IGNORECASE | re.DOTALL)
        if match:
            words = _Words(context, text, match.groupdict())
            fix = row.fix.format_map(words) or None
            return row.kind(row.what.format_map(words), where=_where(context), fix=fix)
    return None


class _Words(dict[str, str]):
    """What the braces of a row stand for; asked only for those it has, so that GPUs are listed only when needed."""

    def __init__(self, context: Context, text: str, groups: Mapping[str, str | None]) -> None:
        super().__init__({name: value for name, value in groups.items() if value is not None}, text=text)
        self._context = context

    def __missing__(self, key: str) -> str:
        if key == "present":
            return self._context.present()
        if key == "option":
            return self._context.option_of.get(self["path"], "an option or the environment")
        return str(getattr(self._context, key)) or "unknown"


def _where(context: Context) -> str | None:
    return f"step {context.step!r}" if context.step else None
