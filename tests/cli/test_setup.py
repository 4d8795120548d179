"""`lab setup`: which image a machine needs, and where it comes from: only what was asked for and named."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import subprocess
import tarfile
import threading
from contextlib import contextmanager

import msgspec
import pytest
from click.testing import CliRunner

import lab
from lab.cli.setup import image_for, setup
from lab.core.gpu import Gpu
from lab.core.provenance import lab_with_content
from lab.errors import BadDataError, ConfigError, EngineError, GpuError, MissingError, StepFailed, UsageError
from lab.gpus.discover import Found
from lab.images import acquire
from lab.images.targets import targets

CPU = targets(["cpu"])[0]
DIGEST = "sha256:" + "ab" * 32
NOWHERE = {"local_version": None, "registry": None, "release": None, "has_tree": False}


def gpu(vendor, arch):
    return Gpu(vendor=vendor, index=0, uuid="GPU-0", name="a GPU", arch=arch)


@pytest.mark.parametrize(
    "vendor, arch, image",
    [
        ("nvidia", "sm_90", "cuda"),
        ("nvidia", "sm_61", "pascal"),
        ("nvidia", "sm_86", "cuda"),
        ("nvidia", None, "cuda"),
        ("amd", "gfx942", "rocm70"),
    ],
)
def test_a_gpu_gets_the_image_that_has_code_for_it(vendor, arch, image):
    assert image_for([gpu(vendor, arch)]) == image


def test_no_gpu_needs_the_cpu_image_and_a_gpu_without_code_is_an_error():
    assert image_for([]) == "cpu"
    with pytest.raises(GpuError, match="gfx803"):
        image_for([gpu("amd", "gfx803")])


def test_what_is_here_is_kept_then_release_then_registry_then_a_build():
    release = {"cpu": f"ghcr.io/me/lab/cpu@{DIGEST}"}
    given = {**NOWHERE, "release": release, "registry": "ghcr.io/me", "has_tree": True}
    assert acquire.choose(CPU, **{**given, "local_version": lab.__version__}).action == "here"
    assert acquire.choose(CPU, **given).ref == release["cpu"]
    way = acquire.choose(CPU, **{**given, "release": None})
    assert (way.action, way.ref) == ("pull", f"ghcr.io/me/lab/cpu:{lab.__version__}")
    assert acquire.choose(CPU, **{**given, "release": None, "registry": None}).action == "build"


def test_a_wheel_install_that_nothing_tells_where_to_pull_says_the_three_ways():
    with pytest.raises(MissingError) as caught:
        acquire.choose(CPU, **NOWHERE)
    assert all(word in str(caught.value) for word in ("--release", "--registry", "checkout"))
    with pytest.raises(UsageError, match="no image 'cpu'"):
        acquire.choose(CPU, **{**NOWHERE, "release": {}})


def test_a_registry_without_a_host_is_refused_from_option_and_environment(monkeypatch):
    monkeypatch.setenv(acquire.REGISTRY, "lab")
    with pytest.raises(ConfigError, match=r"docker\.io"):
        acquire.registry_given(None)
    for hostile in ("--all-tags.x/y", "ghcr.io/me me", "ghcr.io/me@sha256:0", "GHCR.io/$(x)"):
        with pytest.raises(ConfigError):
            acquire.registry_given(hostile)
    assert acquire.registry_given("ghcr.io/me/") == "ghcr.io/me"
    monkeypatch.delenv(acquire.REGISTRY)
    assert acquire.registry_given(None) is None


@pytest.mark.parametrize("given", ["docker.io", "index.docker.io/", "ghcr.io", "https://ghcr.io"])
def test_a_public_registry_without_an_owner_is_refused(given):
    with pytest.raises(ConfigError, match="names no owner"):
        acquire.registry_given(given)


def test_an_address_is_no_registrys_name_and_a_registry_of_ones_own_needs_no_owner():
    with pytest.raises(ConfigError):
        acquire.registry_given("https://ghcr.io/me")
    for own in ("localhost:5000", "registry.example.org", "registry.example.org:5000/gpu/team"):
        assert acquire.registry_given(own) == own


def test_an_installed_lab_does_not_keep_an_image_of_another_lab_and_a_checkout_does():
    """Runs refuse it, and setup must not call it ready."""
    old = {**NOWHERE, "local_version": "0.0.9"}
    assert acquire.choose(CPU, **{**old, "registry": "ghcr.io/me"}).action == "pull"
    assert acquire.choose(CPU, **{**old, "has_tree": True}).action == "here"
    with pytest.raises(MissingError, match=rf"is of lab 0\.0\.9, .* for lab {lab.__version__}"):
        acquire.choose(CPU, **old)
    with pytest.raises(MissingError, match=r"is of lab \(no version\)"):
        acquire.choose(CPU, **{**NOWHERE, "local_version": ""})


@pytest.mark.docker
def test_the_next_command_names_an_image_where_a_target_was_asked_for(monkeypatch):
    monkeypatch.setenv(acquire.REGISTRY, "ghcr.io/me")
    done = CliRunner().invoke(setup, ["cpu-torch", "--dry-run"], catch_exceptions=False)
    assert "next: lab run --image cpu sweep -c 28,42 --ranks 2" in done.output


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        '{"cpu": 1}',
        '{"cpu": "ghcr.io/me/lab/cpu:latest"}',
        json.dumps({"cpu": f"lab/cpu@{DIGEST}"}),
        json.dumps({"cpu": f"--all-tags@{DIGEST}"}),
    ],
)
def test_a_release_that_names_anything_but_digests_in_a_registry_is_refused(tmp_path, text):
    (tmp_path / "images.json").write_text(text)
    with pytest.raises(BadDataError):
        acquire.read_release(tmp_path / "images.json")
    with pytest.raises(MissingError):
        acquire.read_release(tmp_path / "gone.json")


@contextmanager
def registry(version, title="lab/cpu", spoiled=""):
    """A registry with one image, `lab/cpu`, that holds one file; -> its address and the image's digest.

    spoiled: what it sends other bytes of, of the same length: the manifest or the layer.
    """
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a file"), io.BytesIO())
    layer = gzip.compress(tarred.getvalue())
    diff = hashlib.sha256(tarred.getvalue()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": {acquire.VERSION_LABEL: version, acquire.TITLE_LABEL: title}},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}"]},
        }
    ).encode()
    blobs = {f"sha256:{hashlib.sha256(data).hexdigest()}": data for data in (layer, config)}
    kind = "application/vnd.docker.{}"
    described = [
        {"mediaType": kind.format(name), "size": len(data), "digest": digest}
        for name, (digest, data) in zip(
            ("image.rootfs.diff.tar.gzip", "container.image.v1+json"), blobs.items(), strict=True
        )
    ]
    media = kind.format("distribution.manifest.v2+json")
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": media, "config": described[1], "layers": described[:1]}
    ).encode()
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    known = {lab.__version__: manifest, digest: manifest, **blobs}
    if spoiled:
        bad = digest if spoiled == "manifest" else next(iter(blobs))
        known[bad] = known[bad][:-2] + b" }"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.rsplit("/", 1)[-1]
            data = b"" if self.path == "/v2/" else known.get(name)
            self.send_response(404 if data is None else 200)
            of_image = name in (lab.__version__, digest)
            self.send_header("Content-Type", media if of_image else "application/octet-stream")
            self.send_header("Docker-Content-Digest", digest if of_image else name)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data or b"")

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", digest
        server.shutdown()


def _target(name):
    return msgspec.structs.replace(CPU, ref=f"localhost/lab-test/{name}")


def _inspected(ref):
    argv = ["docker", "image", "inspect", ref]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def _remove(*refs):
    subprocess.run(["docker", "image", "rm", *refs], capture_output=True, check=False)


@pytest.mark.docker
@pytest.mark.parametrize("by", ["tag", "digest"])
def test_an_image_of_a_registry_gets_its_local_name_and_is_known_by_digest(by):
    target = _target(f"setup-{by}")
    with registry(lab.__version__) as (address, digest):
        named = f"{address}/lab/cpu@{digest}"
        ref = named if by == "digest" else f"{address}/lab/cpu:{lab.__version__}"
        try:
            way = acquire.Way(target="cpu", action="pull", ref=ref)
            assert acquire.pull(["docker"], way, target, print) == named
            listed = subprocess.run(
                ["docker", "image", "inspect", target.ref], capture_output=True, check=False
            )
            assert listed.returncode == 0 and named.encode() in listed.stdout
        finally:
            _remove(target.ref, ref)


@pytest.mark.docker
def test_an_image_of_another_lab_or_a_dead_registry_gets_no_local_name():
    target = _target("setup-other")
    with registry("0.0.9") as (address, digest):
        way = acquire.Way(target="cpu", action="pull", ref=f"{address}/lab/cpu@{digest}")
        try:
            with pytest.raises(BadDataError, match=r"lab 0\.0\.9"):
                acquire.pull(["docker"], way, target, print)
        finally:
            _remove(way.ref)
    with pytest.raises(EngineError, match="cannot pull"):
        acquire.pull(["docker"], way, target, print)
    assert target.ref not in _inspected(target.ref)


@pytest.mark.docker
@pytest.mark.parametrize(
    "how, kind, said",
    [
        ({"title": "lab/pascal"}, BadDataError, "the image is lab/pascal, not lab/cpu"),
        ({"title": ""}, BadDataError, "the image is none of lab"),
        ({"spoiled": "manifest"}, EngineError, "cannot pull"),
        ({"spoiled": "layer"}, EngineError, "cannot pull"),
    ],
)
def test_what_is_not_the_image_that_was_named_gets_no_local_name(how, kind, said):
    """Another of lab's images under a wrong entry of a release, and bytes that do not have their digest."""
    target = _target("setup-wrong")
    with registry(lab.__version__, **how) as (address, digest):
        way = acquire.Way(target="cpu", action="pull", ref=f"{address}/lab/cpu@{digest}")
        try:
            with pytest.raises(kind, match=said):
                acquire.pull(["docker"], way, target, print)
        finally:
            _remove(way.ref)
    assert target.ref not in _inspected(target.ref)


# What Docker 20.10 and podman 4.3 said of a real registry, but for the last four; below, words of the error
# and of its fix.
PULLS = """
Error response from daemon: manifest for {ref} not found: manifest unknown: manifest unknown
    reg.example.org:5000 has no such image (not found); build it
Error: initializing source docker://{ref}: reading manifest 1 in reg: manifest unknown: manifest unknown
    has no such image (manifest unknown); the version
Error response from daemon: Head "http://{ref}": no basic auth credentials
    wants a login, or you may not read this image (no basic auth credentials); login reg.example.org:5000
Error: initializing source docker://{ref}: unauthorized: authentication required
    wants a login; podman login reg.example.org:5000
pull access denied for {ref}, may require 'docker login': denied: requested access to the resource is denied
    wants a login; podman login
Get "https://{ref}": dial tcp 1.2.3.4:443: connect: connection refused
    reg.example.org:5000 cannot be reached (connection refused); the network
Get "https://{ref}": dial tcp: lookup reg on 1.1.1.1:53: no such host
    cannot be reached (no such host); check the name
Get "https://{ref}": http: server gave HTTP response to HTTPS client
    no certificate that this engine accepts; insecure registries
failed to register layer: write /x: no space left on device
    the engine's disk is full; lab doctor
something new
    cannot pull: something new; by hand
"""
LINES = PULLS.strip().splitlines()


@pytest.mark.parametrize(("said", "words"), [*zip(LINES[::2], LINES[1::2], strict=True)])
def test_why_a_pull_failed_is_said_in_words_with_its_cure(said, words):
    ref = f"reg.example.org:5000/lab/cpu@{DIGEST}"
    error = acquire.pull_error("podman", ref, said.format(ref=ref))
    what, fix = words.strip().split("; ")
    assert what in error.problem and fix in str(error.fix) and error.location == ref


@pytest.fixture
def box(tmp_path, monkeypatch):
    """An engine that answers and has no images, and one H200; -> what more the engine says of itself."""
    pytest.importorskip("docker")
    from tests.engines.docker.test_client import DOCKER, an_engine

    monkeypatch.setattr("lab.cli.setup.listed", dict)
    monkeypatch.setattr("lab.cli.setup.look", lambda: Found([gpu("nvidia", "sm_90")]))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LAB_CDI_DIRS", str(tmp_path))
    monkeypatch.setenv(acquire.REGISTRY, "ghcr.io/me")

    @contextmanager
    def serve(**said):
        with an_engine(tmp_path / f"{len(said)}.sock", **DOCKER, **said) as env:
            monkeypatch.setenv("DOCKER_HOST", env["DOCKER_HOST"])
            yield

    return serve


def test_what_keeps_the_gpus_from_containers_is_no_success(box):
    with box(Runtimes={"runc": {}}):
        done = CliRunner().invoke(setup, ["--dry-run"])
    assert isinstance(done.exception, StepFailed) and "toolkit was not found" in done.exception.problem
    assert "pull  cuda" in done.stdout and "next:" not in done.stdout
    with box(Runtimes={"runc": {}, "nvidia": {}}, ContainersRunning=0):
        done = CliRunner().invoke(setup, ["--dry-run"], catch_exceptions=False)
    assert "next: lab run --image cuda sweep" in done.stdout
    with box():
        done = CliRunner().invoke(setup, ["pascal", "--dry-run"], catch_exceptions=False)
    assert "no GPU here fits the image pascal: it is tried without one" in done.output


def test_an_engine_under_load_is_waited_for_longer_than_doctor_waits(box, monkeypatch):
    pytest.importorskip("docker")
    from lab.engines.docker import health

    monkeypatch.setattr(health, "TIMEOUT_S", 0.001)
    with box(Runtimes={"runc": {}, "nvidia": {}}):
        done = CliRunner().invoke(setup, ["--dry-run"], catch_exceptions=False)
    assert "next: lab run --image cuda sweep" in done.stdout


def test_without_an_engine_the_cure_is_said_and_nothing_is_looked_up(box, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/engine.sock")
    monkeypatch.setattr("lab.cli.setup.listed", lambda: pytest.fail("no engine was to be asked"))
    done = CliRunner().invoke(setup, ["cpu"])
    assert isinstance(done.exception, EngineError) and "no Docker engine at" in done.exception.problem


def test_a_broken_driver_does_not_concern_an_image_without_gpus(box, monkeypatch):
    def broken():
        raise GpuError("nvidia-smi failed")

    monkeypatch.setattr("lab.cli.setup.look", broken)
    with box():
        done = CliRunner().invoke(setup, ["cpu-torch", "--dry-run"], catch_exceptions=False)
        assert "next: lab run --image cpu" in done.stdout
        assert isinstance(CliRunner().invoke(setup, ["--dry-run"]).exception, GpuError)


@pytest.mark.docker
def test_an_installed_lab_keeps_no_image_whose_lab_is_another_of_the_same_version(cpu_images, monkeypatch):
    """Runs refuse it, so `next: lab run` would be no next step."""
    monkeypatch.delenv(acquire.REGISTRY, raising=False)
    monkeypatch.setattr("lab.cli.setup.is_tree", lambda _: False)
    done = CliRunner().invoke(setup, ["cpu", "--dry-run"], catch_exceptions=False)
    assert done.stdout.startswith("here  cpu\n")
    ours = msgspec.structs.replace(lab_with_content(), sha256="0" * 64)
    monkeypatch.setattr("lab.engines.docker.which_lab.lab_with_content", lambda: ours)
    done = CliRunner().invoke(setup, ["cpu", "--dry-run"])
    assert isinstance(done.exception, MissingError) and "with other content" in done.exception.problem
