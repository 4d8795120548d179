"""What engines, toolkits and the SDK print, and what lab says instead: one row per message.

Daemons wrap these messages differently from version to version ("OCI runtime create failed: ... error running
hook #0: ..."), so a pattern looks for the words of the cause and for nothing around them.
"""

from __future__ import annotations

from typing import NamedTuple

from lab.errors import BusyError, EngineError, GpuError, LabError, StorageError, UsageError


class Row(NamedTuple):
    """`{name}` is a group of the pattern, a field of Context, or `text`: the daemon's own message."""

    pattern: str
    kind: type[LabError]
    what: str
    fix: str = ""


FAULT = Row(
    "",
    EngineError,
    "a fault in lab: the Docker engine rejects its request: {text}",
    "report it with this text and the output of the same command with --dry-run --json",
)
ROWS = (
    Row(
        r"could not select device driver.*\[\[.*gpu|Unknown runtime specified nvidia",
        GpuError,
        "NVIDIA's container toolkit is not registered with the Docker engine at {endpoint}",
        "install nvidia-container-toolkit; sudo nvidia-ctk runtime configure --runtime=docker; restart it",
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
        "the image {image!r} needs an NVIDIA driver for CUDA {needed}; this host has driver {driver}",
        "update the driver, or choose an image for older ones (lab images list; pascal needs the oldest)",
    ),
    Row(
        r"unresolvable CDI devices?|\S+\.com/gpu=\S+: no such file",
        GpuError,
        "no CDI specification that the engine reads names this GPU: {text}",
        "write it again: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; AMD: amd-ctk",
    ),
    Row(
        r"could not select device driver \"?cdi",
        GpuError,
        "the engine at {endpoint} does not give devices by CDI",
        "Docker 25 to 27: set features.cdi in /etc/docker/daemon.json; or install nvidia-container-toolkit",
    ),
    Row(
        r"adding custom device \"(?P<node>[^\"]*(?:kfd|renderD)[^\"]*)\": no such file",
        GpuError,
        "{node} does not exist: this host has no AMD GPU, or its amdgpu driver is not loaded",
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
        "{option} names a path that the Docker engine cannot find: {path}",
        "create it, or name another one",
    ),
    Row(
        r"error setting rlimit type 8",
        EngineError,
        "the Docker engine may not raise the limit of locked memory (memlock)",
        "give dockerd the capability SYS_RESOURCE; lab itself tries again without the limit",
    ),
    Row(
        r"exec: \"(?P<program>[^\"]*)\": (?:stat [^:]*: no such file|executable file not found)",
        EngineError,
        "the image {ref} has no program {program!r}: it is not an image of lab, or is broken",
        "lab images build {image}",
    ),
    Row(
        r"exec: \"(?P<program>[^\"]*)\": (?:stat [^:]*: )?permission denied",
        EngineError,
        "{program!r} cannot be run in the image {ref}, which is not an image of lab, or is broken",
        "lab images build {image}",
    ),
    Row(r"does not match the specified platform|Requested CPUs are not available", EngineError, "{text}"),
    Row(
        r"(?:no such host|connection refused|i/o timeout|TLS handshake timeout)",
        EngineError,
        "the image {ref} is not on this engine, and its registry cannot be reached: {text}",
        "lab images build {image}, or docker load it from a file",
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
        "step {step!r} already has a container",
        "follow it with lab run --resume {run_dir}, or end it with lab runs stop {run_dir}",
    ),
    Row(
        r"could not find bridge docker0",
        EngineError,
        "the Docker engine has lost its network bridge (docker0)",
        "restart docker, which creates the bridge again",
    ),
    Row(
        r"client version .*too (?:new|old)",
        EngineError,
        "this Docker engine and lab's client have no API version in common: {text}",
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
        "free some: docker system df shows what uses it",
    ),
)
START = (
    "sudo systemctl start docker, or systemctl --user start podman.socket for one of your own, or name "
    "another in DOCKER_HOST; without --image steps run here"
)
UNREACHABLE = (
    Row(
        r"Permission ?(?:Error|denied)",
        EngineError,
        "not allowed to use the Docker engine at {endpoint}",
        "sudo usermod -aG docker $USER and log in again; or run an engine of your own: "
        "systemctl --user start podman.socket, or docker",
    ),
    Row(
        r"timed out|Timeout",
        EngineError,
        "the Docker engine at {endpoint} does not answer in time",
        "see whether `docker info` answers; the engine may be overloaded or hung",
    ),
    *(
        Row(pattern, EngineError, f"no Docker engine answers at {{endpoint}}: {why}", START)
        for pattern, why in (
            ("FileNotFoundError|No such file", "there is no such socket"),
            ("ConnectionRefusedError|Connection refused", "nothing serves it"),
            ("", "{text}"),
        )
    ),
)
