"""Reaching the engine: one that is down, hung, remote, or podman."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import socketserver
import threading

import msgspec
import pytest

pytest.importorskip("docker")
from lab.core.gpu import Gpu
from lab.core.step import Step
from lab.core.stop import Stop
from lab.engines.docker import client as docker_client
from lab.engines.docker import refusals
from lab.engines.docker.client import Daemon, ask, connect
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.refusals import allowed
from lab.errors import EngineError, GpuError
from lab.images import spec as images
from lab.images.container import HostContext, container_spec
from lab.images.docker_cli import endpoint_of
from tests.core.test_manifest import a_run
from tests.wire import dead_socket, deaf_socket


def test_no_engine_at_the_socket_names_both_ways_out(tmp_path):
    with pytest.raises(
        EngineError, match=r"no Docker engine answers at .*: the socket does not exist"
    ) as caught:
        connect({"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert "systemctl start docker" in str(caught.value) and "DOCKER_HOST" in str(caught.value)


def test_a_socket_that_nobody_serves_any_more_is_a_daemon_that_is_down(tmp_path):
    dead_socket(tmp_path / "s")
    with pytest.raises(EngineError, match=r"no Docker engine answers at .*/s: nothing serves it"):
        connect({"DOCKER_HOST": f"unix://{tmp_path}/s"})


def test_an_engine_that_hangs_is_told_after_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(docker_client, "TIMEOUT_S", 0.3)
    with deaf_socket(tmp_path / "s"), pytest.raises(EngineError, match="does not answer in time"):
        connect({"DOCKER_HOST": f"unix://{tmp_path}/s"})


@pytest.mark.parametrize(
    "host", ["tcp://10.0.0.1:2375", "ssh://me@there", "10.0.0.1:2375", "/run/x.sock", "unix:/run/x.sock"]
)
def test_what_is_not_the_socket_of_an_engine_here_is_refused(host):
    with pytest.raises(EngineError, match="not the socket of an engine of this machine") as caught:
        connect({"DOCKER_HOST": host})
    assert "unix:///path" in str(caught.value)


def test_an_address_without_a_path_is_none():
    assert endpoint_of({"DOCKER_HOST": "unix://"}) == endpoint_of({})


@pytest.mark.parametrize(
    "meta, endpoint",
    [
        ('{"Endpoints": {"docker": {"Host": "unix:///mine.sock"}}}', "unix:///mine.sock"),
        ('{"Endpoints": {"docker": {"Host": "tcp://10.0.0.1:2375"}}}', "tcp://10.0.0.1:2375"),
        ('{"Endpoints": []}', "context://lab-test"),
        (None, "context://lab-test"),
    ],
)
def test_the_context_of_dockers_program_is_followed_and_one_that_is_not_here_refused(
    tmp_path, meta, endpoint
):
    folder = tmp_path / "contexts/meta" / hashlib.sha256(b"lab-test").hexdigest()
    folder.mkdir(parents=True)
    if meta:
        (folder / "meta.json").write_text(meta)
    (tmp_path / "config.json").write_text('{"currentContext": "lab-test"}')
    env = {"DOCKER_CONFIG": str(tmp_path)}
    assert endpoint_of(env) == endpoint
    assert endpoint_of({**env, "DOCKER_CONTEXT": "default"}) == endpoint_of({})
    with pytest.raises(EngineError, match="mine.sock" if "mine" in endpoint else "not the socket") as caught:
        connect(env)
    assert endpoint in str(caught.value)


PODMAN = {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]}
DOCKER = {"ApiVersion": "1.41", "Components": [{"Name": "Engine", "Version": "20.10.24"}]}


@contextlib.contextmanager
def an_engine(path, **said):
    """A socket at which an engine says this of itself."""
    answer = json.dumps(said).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None: ...

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield {"DOCKER_HOST": f"unix://{path}"}
        server.shutdown()


@pytest.fixture
def podman(tmp_path):
    with an_engine(tmp_path / "p.sock", **PODMAN) as env:
        yield lambda: connect(env)


@pytest.mark.parametrize(
    ("said", "mapping"),
    [
        ({**DOCKER, "SecurityOptions": ["name=seccomp,profile=default"]}, "same"),
        ({**DOCKER, "SecurityOptions": None}, "same"),
        (
            {**DOCKER, "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]},
            "rootless-docker",
        ),
        ({**DOCKER, "SecurityOptions": ["name=seccomp,profile=default", "name=userns"]}, "remapped"),
        (
            {**PODMAN, "SecurityOptions": ["name=seccomp,profile=default"], "Rootless": True},
            "rootless-podman",
        ),
        ({**PODMAN, "SecurityOptions": ["name=seccomp,profile=default,name=rootless"]}, "rootless-podman"),
        ({**PODMAN, "SecurityOptions": [], "Rootless": False}, "same"),
    ],
)
def test_an_engine_says_whether_it_is_rootless(tmp_path, said, mapping):
    with an_engine(tmp_path / "e.sock", **said) as env:
        daemon, nature = connect(env), ask(env["DOCKER_HOST"], 5)
    assert daemon.user_mapping == mapping
    assert nature is not None
    assert vars(nature).items() <= vars(daemon).items(), "as a plan asks, without the SDK"


def test_a_plan_waits_for_no_engine_that_is_not_there_or_does_not_speak(tmp_path):
    with deaf_socket(tmp_path / "s"):
        assert ask(f"unix://{tmp_path}/s", 0.3) is None
    assert ask(f"unix://{tmp_path}/s", 0.3) is None
    assert ask(f"unix://{tmp_path}/none", 5) is None and ask("tcp://10.0.0.1:2375", 5) is None


def test_a_rootless_engine_of_another_user_would_make_the_results_his(tmp_path, monkeypatch):
    with an_engine(tmp_path / "e.sock", **PODMAN, Rootless=True) as env:
        monkeypatch.setattr(docker_client.os, "getuid", lambda: 4321)
        with pytest.raises(EngineError, match=r"is user \d+'s, who would own the results"):
            connect(env)


def test_the_users_own_engine_is_found_where_he_may_not_use_the_systems(tmp_path, monkeypatch):
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    usable: set[str] = set()
    monkeypatch.setattr(docker_client.os, "access", lambda path, _: path in usable)
    assert endpoint_of(env) == "unix:///var/run/docker.sock"
    for path in (f"{tmp_path}/podman/podman.sock", f"{tmp_path}/docker.sock", "/var/run/docker.sock"):
        usable.add(path)  # each goes before those found so far
        assert endpoint_of(env) == f"unix://{path}"
    assert endpoint_of({**env, "DOCKER_HOST": "unix:///mine"}) == "unix:///mine"


def test_rootless_docker_is_refused_for_amd_nodes_that_only_a_group_opens(tmp_path, monkeypatch):
    node = tmp_path / "renderD128"
    node.write_bytes(b"")
    node.chmod(0o660)
    host = HostContext(
        run_dir=str(tmp_path), hf_cache="/hf", cache="/c", uid=1, gid=1, user_mapping="rootless-docker"
    )
    gpus = [Gpu(vendor="amd", index=0, uuid="GPU-0", render_node=str(node))]
    spec = container_spec(images.load("rocm70"), Step(name="s", argv=("true",)), gpus, host)
    spec = msgspec.structs.replace(spec, devices=spec.devices[1:])  # without /dev/kfd
    rootless = Daemon(client=None, endpoint="e", is_podman=False, user_mapping="rootless-docker")
    assert allowed(rootless, spec) is spec, "the caller's own"
    monkeypatch.setattr(refusals.os, "getuid", lambda: 4321)
    monkeypatch.setattr(refusals.os, "getgid", lambda: 4321)
    with pytest.raises(GpuError, match="lose the group") as caught:
        allowed(rootless, spec)
    assert "podman" in str(caught.value)
    node.chmod(0o666)
    assert allowed(rootless, spec) is spec


def test_podman_is_refused_for_nvidia_gpus_without_cdi_names_because_it_would_run_without_them(
    podman, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    step = Step(name="s", argv=("true",), folder="s", num_gpus=1)
    engine = DockerEngine(images.load("pascal"), daemon=podman)
    gpus = [Gpu(vendor="nvidia", index=0, uuid="GPU-0")]
    assert engine.daemon().is_podman
    with pytest.raises(GpuError, match="podman, which gives NVIDIA GPUs by CDI only") as caught:
        engine.run(a_run(tmp_path / "r", step), step, gpus, on_line=print, stop=Stop())
    assert "nvidia-ctk cdi generate" in str(caught.value)


@pytest.mark.parametrize(
    ("said", "knows"),
    [
        (DOCKER, False),
        ({**DOCKER, "CDISpecDirs": None}, False),
        ({**DOCKER, "CDISpecDirs": []}, False),  # 25 to 27 with CDI switched off
        ({**DOCKER, "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"]}, True),
        (PODMAN, True),
        ({**PODMAN, "Components": [{"Name": "Podman Engine", "Version": "4.0.3"}]}, False),
        ({**PODMAN, "Components": [{"Name": "Podman Engine", "Version": "10.1.0-dev"}]}, True),
        ({**PODMAN, "Components": [{"Name": "Podman Engine", "Version": "?"}]}, False),
    ],
)
def test_an_engine_says_whether_it_gives_devices_by_cdi(tmp_path, said, knows):
    with an_engine(tmp_path / "e.sock", **said) as env:
        assert connect(env).cdi is knows


def test_a_plan_for_an_engine_with_cdi_names_the_gpus_by_it(tmp_path):
    gpu = Gpu(vendor="nvidia", index=0, uuid="GPU-0", cdi="nvidia.com/gpu=GPU-0")
    step = Step(name="s", argv=("true",), num_gpus=1)
    with an_engine(tmp_path / "e.sock", **DOCKER, CDISpecDirs=["/etc/cdi"]) as env:
        engine = DockerEngine(images.load("cuda"), daemon=lambda: connect(env))
        preview = engine.preview(step, [gpu], run_dir=str(tmp_path))
    (request,) = preview["device_requests"]
    assert (request["driver"], list(request["device_ids"])) == ("cdi", ["nvidia.com/gpu=GPU-0"])


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
