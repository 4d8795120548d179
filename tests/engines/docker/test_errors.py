"""What engines say, without an engine: each text goes through the SDK itself, on a wire that is made up here."""

from __future__ import annotations

import http.server
import json
import socket
import socketserver
import threading
import time
from pathlib import Path

import pytest
import requests

docker = pytest.importorskip("docker")
from docker.errors import APIError, DockerException  # noqa: E402

from lab.core.gpu import Gpu  # noqa: E402
from lab.core.step import Step  # noqa: E402
from lab.core.stop import Stop  # noqa: E402
from lab.engines.docker import client as docker_client  # noqa: E402
from lab.engines.docker import logs as docker_logs
from lab.engines.docker.client import Daemon, connect  # noqa: E402
from lab.engines.docker.container import moment, start  # noqa: E402
from lab.engines.docker.engine import DockerEngine  # noqa: E402
from lab.engines.docker.errors import Context, speaking, translate  # noqa: E402
from lab.engines.docker.logs import LogFollower  # noqa: E402
from lab.engines.sink import Sink  # noqa: E402
from lab.errors import BusyError, EngineError, EngineLost, GpuError, StorageError, UsageError  # noqa: E402
from lab.images import spec as images  # noqa: E402
from lab.images.spec import HostContext, container_spec  # noqa: E402
from tests.core.test_manifest import a_run  # noqa: E402

CONTEXT = Context(
    endpoint="unix:///x.sock",
    image="cuda",
    ref="lab/cuda",
    step="s",
    driver="535.1",
    run_dir="/runs/r",
    option_of={"/data/gone": "HF_HOME"},
    present=lambda: "0 H100 GPU-7",
)
OLD = "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: error running hook #0: error running hook: exit status 1, stdout: , stderr: {}: unknown"
NEW = "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: error running prestart hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n{}"


class Wire(requests.adapters.BaseAdapter):
    """Answers every request with one status and one message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__()
        self.status, self.message = status, message

    def send(self, request, **_):
        response = requests.Response()
        response.status_code, response.url, response.request, response.reason = (
            self.status,
            request.url,
            request,
            "x",
        )
        response._content = json.dumps({"message": self.message}).encode()
        return response

    def close(self) -> None: ...


def said(status: int, message: str):
    """The error lab makes of a daemon's answer."""
    client = docker.APIClient(base_url="http://engine.invalid:1", version="1.41")
    client.mount("http://engine.invalid:1", Wire(status, message))
    with pytest.raises(Exception) as caught, speaking(CONTEXT):
        client.start("c")
    return caught.value


NVIDIA = [
    (
        "nvidia-container-cli: initialization error: nvml error: driver not loaded",
        GpuError,
        ["NVIDIA's driver is not loaded", "nvidia-smi"],
    ),
    (
        "nvidia-container-cli: device error: GPU-9: unknown device",
        GpuError,
        ["no such GPU", "GPU-9", "0 H100 GPU-7"],
    ),
    ("nvidia-container-cli: device error: unknown device id: 9", GpuError, ["no such GPU", "0 H100 GPU-7"]),
    (
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version, "
        "or use an earlier cuda container",
        GpuError,
        ["CUDA 12.8", "driver 535.1", "'cuda'", "pascal"],
    ),
]


@pytest.mark.parametrize("around", [OLD, NEW, "{}"], ids=["20.10", "newer", "bare"])
@pytest.mark.parametrize("text, kind, words", NVIDIA)
def test_what_nvidias_toolkit_says_is_a_gpu_error_however_it_is_wrapped(around, text, kind, words):
    error = said(500, around.format(text))
    assert type(error) is kind and all(word in str(error) for word in words), error


@pytest.mark.parametrize(
    "status, text, kind, words",
    [
        (
            500,
            'could not select device driver "nvidia" with capabilities: [[gpu compute utility]]',
            GpuError,
            ["toolkit is not registered", "unix:///x.sock", "nvidia-ctk runtime configure"],
        ),
        (400, "Unknown runtime specified nvidia", GpuError, ["toolkit is not registered"]),
        (
            400,
            "unknown or invalid runtime specified nvidia; Unknown runtime specified nvidia",
            GpuError,
            ["nvidia-ctk"],
        ),
        (
            500,
            'error gathering device information while adding custom device "/dev/kfd": no such file or directory',
            GpuError,
            ["/dev/kfd is not there", "amdgpu"],
        ),
        (
            500,
            "Unable to find group render: no matching entries in group file",
            EngineError,
            ["a fault in lab", "render"],
        ),
        (500, "unable to find user lab: no matching entries in passwd file", EngineError, ["a fault in lab"]),
        (400, "cannot set both Count and DeviceIDs on device request", EngineError, ["a fault in lab"]),
        (
            400,
            'invalid mount config for type "bind": bind source path does not exist: /data/gone',
            UsageError,
            ["HF_HOME names a path", "/data/gone"],
        ),
        (
            500,
            "OCI runtime create failed: error setting rlimit type 8: operation not permitted: unknown",
            EngineError,
            ["locked memory"],
        ),
        (
            400,
            'OCI runtime create failed: exec: "python3": stat python3: no such file or directory: unknown',
            EngineError,
            ["lab/cuda has no program 'python3'", "lab images build cuda"],
        ),
        (
            400,
            'exec: "python3": executable file not found in $PATH: unknown',
            EngineError,
            ["has no program 'python3'"],
        ),
        (
            400,
            'OCI runtime create failed: exec: "/bin/x": permission denied: unknown',
            EngineError,
            ["'/bin/x' cannot be run"],
        ),
        (
            404,
            "image with reference x was found but does not match the specified platform: wanted linux/arm64",
            EngineError,
            ["wanted linux/arm64"],
        ),
        (
            400,
            "Requested CPUs are not available - requested 0-63, available: 0-1",
            EngineError,
            ["requested 0-63"],
        ),
        (
            404,
            "No such image: lab/cuda:latest",
            EngineError,
            ["lab/cuda is not on this engine", "lab images build cuda"],
        ),
        (
            404,
            "pull access denied for lab/cuda, repository does not exist or may require 'docker login'",
            EngineError,
            ["lab images build cuda"],
        ),
        (
            500,
            'Get "https://registry.example/v2/": dial tcp: lookup registry.example: no such host',
            EngineError,
            ["its registry cannot be reached", "docker load"],
        ),
        (
            500,
            'Get "https://registry.example/v2/": dial tcp 192.0.2.1:443: connect: connection refused',
            EngineError,
            ["registry cannot be reached"],
        ),
        (
            500,
            'Get "https://registry.example/v2/": dial tcp 192.0.2.1:443: i/o timeout',
            EngineError,
            ["registry cannot be reached"],
        ),
        (
            409,
            'Conflict. The container name "/lab-r-1" is already in use by container "abc".',
            BusyError,
            ["is there already", "lab run --attach /runs/r", "lab runs stop /runs/r"],
        ),
        (
            500,
            "could not find bridge docker0: route ip+net: no such network interface",
            EngineError,
            ["docker0", "restart docker"],
        ),
        (
            400,
            "client version 1.52 is too new. Maximum supported API version is 1.41",
            EngineError,
            ["DOCKER_API_VERSION"],
        ),
        (
            400,
            "client version 1.41 is too old. Minimum supported API version is 1.44",
            EngineError,
            ["upgrade", "1.44"],
        ),
        (
            500,
            "write /var/lib/docker/x: no space left on device",
            StorageError,
            ["Docker engine", "docker system df"],
        ),
        (
            500,
            "something nobody has seen before",
            EngineError,
            ["the Docker engine says: something nobody has seen before"],
        ),
    ],
)
def test_what_the_daemon_says_becomes_an_error_with_its_cure(status, text, kind, words):
    error = said(status, text)
    assert type(error) is kind and all(word in str(error) for word in words), error
    assert error.where == "step 's'" and isinstance(error.__cause__, APIError)


@pytest.mark.parametrize(
    "text, words",
    [
        (
            "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'))",
            "SSL_CERT_FILE",
        ),
        (
            "the --mount option requires BuildKit. Refer to https://docs.docker.com/go/buildkit/",
            "docker-buildx",
        ),
        ("ERROR: BuildKit is enabled but the buildx component is missing or broken.", "docker-buildx"),
    ],
)
def test_what_a_build_says_becomes_an_error_with_its_cure(text, words):
    error = translate(RuntimeError(text), context=CONTEXT)
    assert type(error) is EngineError and words in str(error)


def test_a_mount_that_nobody_named_is_told_all_the_same():
    assert "an option or the environment names a path" in str(
        said(400, "bind source path does not exist: /elsewhere")
    )


def test_a_secret_in_the_daemons_text_is_not_repeated(monkeypatch):
    monkeypatch.setenv("REGISTRY_PASSWORD", "planted_secret")
    error = said(500, 'Get "https://me:planted_secret@registry.example/v2/": x')
    assert "planted_secret" not in str(error) and "[redacted]" in str(error)


# Reaching the engine.


def test_no_engine_at_the_socket_names_both_ways_out(tmp_path):
    with pytest.raises(EngineError, match="no Docker engine answers") as caught:
        connect({"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert "systemctl start docker" in str(caught.value) and "DOCKER_HOST" in str(caught.value)


def test_a_socket_that_nobody_serves_any_more_is_a_daemon_that_is_down(tmp_path):
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "s"))
    dead.close()
    with pytest.raises(EngineError, match="no Docker engine answers"):
        connect({"DOCKER_HOST": f"unix://{tmp_path}/s"})


def test_a_socket_that_is_not_ours_names_the_group():
    text = "Error while fetching server API version: ('Connection aborted.', PermissionError(13, 'Permission denied'))"
    error = translate(DockerException(text), context=CONTEXT)
    assert type(error) is EngineError and "usermod -aG docker" in str(error)


def test_an_engine_that_hangs_is_told_after_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(docker_client, "TIMEOUT_S", 0.3)
    deaf = socket.socket(socket.AF_UNIX)
    deaf.bind(str(tmp_path / "s"))
    deaf.listen()
    with pytest.raises(EngineError, match="does not answer in time"):
        connect({"DOCKER_HOST": f"unix://{tmp_path}/s"})
    deaf.close()


@pytest.mark.parametrize(
    "host", ["tcp://10.0.0.1:2375", "ssh://me@there", "http://10.0.0.1:2375", "10.0.0.1:2375"]
)
def test_an_engine_on_another_machine_is_refused_unless_allowed(host):
    with pytest.raises(EngineError, match="not an engine of this machine") as caught:
        connect({"DOCKER_HOST": host})
    assert "LAB_ALLOW_REMOTE_ENGINE=1" in str(caught.value)


def test_an_allowed_remote_engine_is_really_asked(monkeypatch):
    monkeypatch.setattr(docker_client, "TIMEOUT_S", 2)
    with pytest.raises(EngineError, match=r"no Docker engine answers at tcp://127\.0\.0\.1:9"):
        connect({"DOCKER_HOST": "tcp://127.0.0.1:9", "LAB_ALLOW_REMOTE_ENGINE": "1"})


def test_an_engine_that_goes_while_a_container_runs_names_the_container_and_the_way_back():
    context = Context(endpoint="e", step="s", run_dir="/runs/r", container="0123456789abcdef")
    error = translate(requests.exceptions.ConnectionError("gone"), context=context)
    assert type(error) is EngineLost and "0123456789ab may live on" in str(error)
    assert "lab run --attach /runs/r" in str(error)


@pytest.fixture
def podman(tmp_path):
    """A socket that answers as podman does."""
    answer = json.dumps(
        {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}
    ).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None: ...

    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "p.sock"), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield lambda: connect({"DOCKER_HOST": f"unix://{tmp_path}/p.sock"})
        server.shutdown()


def test_podman_is_refused_for_nvidia_gpus_because_it_would_run_without_them(podman, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    step = Step(name="s", argv=("true",), folder="s", num_gpus=1)
    engine = DockerEngine(images.load("pascal"), daemon=podman)
    gpus = [Gpu(vendor="nvidia", index=0, uuid="GPU-0")]
    assert engine.daemon().is_podman
    with pytest.raises(GpuError, match="podman, which ignores requests for NVIDIA GPUs"):
        engine.run(a_run(tmp_path / "r", step), step, gpus, on_line=print, stop=Stop())


# Parts that a healthy engine never shows.


HOST = HostContext(run_dir="/out", hf_cache="/hf", cache="/c", uid=1, gid=1, infiniband=True)
SPEC = container_spec(
    images.load("cuda"),
    Step(name="s", argv=("true",), num_gpus=1),
    [Gpu(vendor="nvidia", index=0, uuid="GPU-0")],
    HOST,
)


class Stingy:
    """An engine that may not lift the limit of locked memory."""

    def __init__(self) -> None:
        self.limits: list[list[str]] = []
        self.removed: list[str] = []

    def create_host_config(self, **given):
        self.limits.append([limit.name for limit in given["ulimits"]])
        return given

    def create_container(self, *_, **__):
        return {"Id": f"c{len(self.limits)}"}

    def start(self, container: str) -> None:
        if "memlock" in self.limits[-1]:
            raise APIError(
                "x",
                explanation="OCI runtime create failed: error setting rlimit type 8: operation not permitted",
            )

    def remove_container(self, container: str, **_) -> None:
        self.removed.append(container)


def test_a_refused_memlock_is_tried_again_without_and_said():
    engine = Stingy()
    container, warnings = start(engine, SPEC, name="n", labels={}, context=CONTEXT)
    assert engine.limits == [["stack", "memlock"], ["stack"]]
    assert container == "c2" and engine.removed == ["c1"], "the one that did not start leaves nothing behind"
    assert len(warnings) == 1 and "locked memory" in warnings[0]


def test_another_error_is_not_tried_again():
    engine = Stingy()
    engine.start = lambda _: (_ for _ in ()).throw(APIError("x", explanation="nvml error: driver not loaded"))
    with pytest.raises(GpuError):
        start(engine, SPEC, name="n", labels={}, context=CONTEXT)
    assert len(engine.limits) == 1 and engine.removed == ["c1"]


def test_a_start_without_an_answer_leaves_the_container_to_be_taken_up_again():
    engine = Stingy()
    engine.start = lambda _: (_ for _ in ()).throw(requests.exceptions.ReadTimeout("Read timed out."))
    with pytest.raises(EngineLost, match="c1 may live on"):
        start(engine, SPEC, name="n", labels={}, context=CONTEXT)
    assert engine.removed == []


class Entries:
    """An engine whose log is known. `cuts` are the entries after which following breaks, one a time; then it hangs."""

    def __init__(self, entries: list[bytes], cuts: list[int], *, hang: bool = False) -> None:
        self.entries, self.cuts, self.hang = entries, list(cuts), hang
        self.read = 0

    def logs(self, _container, *, follow, tail, **_):
        closed = threading.Event()
        end = self.cuts.pop(0) if follow and self.cuts else None
        found = self.entries[:end] if follow else self.entries if tail == "all" else self.entries[-tail:]
        self.read += 0 if follow else len(found)

        def entries():
            yield from found
            if follow and self.hang:
                closed.wait(30)

        return Stream(entries(), closed.set)


class Stream:
    def __init__(self, entries, close) -> None:
        self._entries, self.close = entries, close

    def __iter__(self):
        return self._entries


def entries(times: list[int], text: str = "line {}") -> list[bytes]:
    return [f"2026-01-01T00:00:00.{t:09}Z {text.format(n)}\n".encode() for n, t in enumerate(times)]


def followed(engine, root: Path) -> list[str]:
    lines: list[str] = []
    with Sink(root / "log", lines.append) as sink:
        follower = LogFollower(engine, "c", sink)
        follower.start()
        time.sleep(0.3)
        follower.finish()
        assert follower.error is None
    return lines


@pytest.mark.parametrize("cuts", [[0], [1], [3], [6], [7], [2, 2], [3, 0, 1]])
def test_a_broken_stream_is_taken_up_where_it_broke_without_a_line_twice(tmp_path, cuts):
    """Entries share times, and an older one comes after a newer one, as pieces of a long line do."""
    assert followed(Entries(entries([1, 1, 2, 1, 2, 3, 3]), cuts), tmp_path) == [
        f"line {n}" for n in range(7)
    ]


@pytest.mark.parametrize("cut", [0, 100, 950, 999, 1000])
def test_of_a_long_log_only_the_end_is_read_again_if_that_is_enough(tmp_path, cut):
    engine = Entries(entries(list(range(1000))), [cut])
    assert followed(engine, tmp_path) == [f"line {n}" for n in range(1000)]
    assert engine.read == {0: 1000, 100: 64 + 1000}.get(cut, 64)


@pytest.mark.parametrize("cut", [100, 950, 999, 1000])
def test_entries_that_are_all_alike_are_still_counted_exactly(tmp_path, cut):
    assert followed(Entries(entries([7] * 1000, "same"), [cut]), tmp_path) == ["same"] * 1000


def test_a_stream_that_hangs_after_the_end_is_cut_off_and_the_rest_read_plainly(tmp_path, monkeypatch):
    monkeypatch.setattr(docker_logs, "QUIET_S", 0.3)
    engine = Entries(entries([1, 2, 3]), [1], hang=True)
    assert followed(engine, tmp_path) == ["line 0", "line 1", "line 2"]


def test_the_daemons_times_are_read_with_all_their_decimals_and_zones():
    assert moment("2026-01-01T01:00:00.123456789+01:00").isoformat() == "2026-01-01T00:00:00.123456+00:00"
    assert moment("2026-01-01T00:00:00Z").microsecond == 0
    assert moment("2026-01-01T00:00:00.5Z").microsecond == 500_000
    with pytest.raises(EngineError):
        moment("yesterday")


def test_a_daemon_is_reached_once_for_all_steps():
    made: list[int] = []

    def make() -> Daemon:
        made.append(1)
        return Daemon(client=None, endpoint="e", is_podman=False)

    engine = DockerEngine(images.load("cpu"), daemon=make)
    threads = [threading.Thread(target=engine.daemon) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
