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

import pytest

import lab
from lab.cli.setup import image_for
from lab.core.gpu import Gpu
from lab.errors import BadDataError, ConfigError, EngineError, GpuError, MissingError, UsageError
from lab.images import acquire
from lab.images.targets import targets

CPU = targets(["cpu"])[0]
DIGEST = "sha256:" + "ab" * 32
NOWHERE = {"here": False, "registry": None, "release": None, "has_tree": False}


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
    assert acquire.choose(CPU, **{**given, "here": True}).how == "here"
    assert acquire.choose(CPU, **given).ref == release["cpu"]
    way = acquire.choose(CPU, **{**given, "release": None})
    assert (way.how, way.ref) == ("pull", f"ghcr.io/me/lab/cpu:{lab.__version__}")
    assert acquire.choose(CPU, **{**given, "release": None, "registry": None}).how == "build"


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
def registry(version):
    """A registry with one image, `lab/cpu`, that holds one file; -> its address and the image's digest."""
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a file"), io.BytesIO())
    layer = gzip.compress(tarred.getvalue())
    diff = hashlib.sha256(tarred.getvalue()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": {acquire.VERSION_LABEL: version}},
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

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.rsplit("/", 1)[-1]
            data = b"" if self.path == "/v2/" else known.get(name)
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Type", media if data is manifest else "application/octet-stream")
            self.send_header("Docker-Content-Digest", digest if data is manifest else name)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data or b"")

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", digest
        server.shutdown()


def _target(name):
    import msgspec

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
            way = acquire.Way(target="cpu", how="pull", ref=ref)
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
        way = acquire.Way(target="cpu", how="pull", ref=f"{address}/lab/cpu@{digest}")
        try:
            with pytest.raises(BadDataError, match=r"lab 0\.0\.9"):
                acquire.pull(["docker"], way, target, print)
        finally:
            _remove(way.ref)
    with pytest.raises(EngineError, match="cannot pull"):
        acquire.pull(["docker"], way, target, print)
    assert target.ref not in _inspected(target.ref)
