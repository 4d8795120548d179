from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.core.step import Step
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.refusals import check_run_folder, checked
from lab.errors import MissingError, UsageError
from lab.images import spec as images
from lab.images.container import HostContext, Mount, container_spec


@pytest.fixture
def host(tmp_path):
    (tmp_path / "run").mkdir()
    return HostContext(
        run_dir=str(tmp_path / "run"),
        hf_cache=str(tmp_path / "hf"),
        cache=str(tmp_path / "cache"),
        uid=1,
        gid=1,
    )


def spec(host, *, tools=(), gpus=1, **env):
    step = Step(name="s", argv=("python",), tools=tools)
    cards = [Gpu(vendor="nvidia", index=i, uuid=f"GPU-{i}") for i in range(gpus)]
    return container_spec(images.load("cuda"), step, cards, msgspec.structs.replace(host, host_env=env))


def with_source(base, target, source):
    mounts = tuple(
        Mount(source=str(source), target=m.target) if m.target == target else m for m in base.mounts
    )
    return msgspec.structs.replace(base, mounts=mounts)


def test_lab_makes_its_caches_and_resolves_every_source(host, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "hf").symlink_to(tmp_path / "real")
    got = {m.target: m.source for m in checked(spec(host)).mounts}
    assert got == {"/out": host.run_dir, "/hf": str(tmp_path / "real"), "/cache": host.cache}
    assert Path(host.cache).is_dir()


@pytest.mark.parametrize(
    "bad", ["/", "/etc", "/etc/ssl", "/var/run", "/proc/self", "/usr/lib", "/dev/dri", "/sys/class"]
)
def test_a_system_folder_never_enters(host, bad):
    with pytest.raises(UsageError, match="HF_HOME names a folder that cannot be mounted"):
        checked(with_source(spec(host), "/hf", bad))


def test_the_whole_home_and_what_holds_it_never_enter(host, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "people" / "me"))
    (tmp_path / "people" / "me").mkdir(parents=True)
    for bad in ("people/me", "people"):
        with pytest.raises(UsageError, match="cannot be mounted"):
            checked(with_source(spec(host), "/hf", tmp_path / bad))


@pytest.mark.parametrize("bad", ["/", "/usr/new/run", "/var/lib/x", "/etc"])
def test_a_run_folder_that_no_container_may_get_is_refused_before_it_is_made(bad):
    with pytest.raises(UsageError, match="--output-dir names a folder that cannot be mounted"):
        DockerEngine(images.load("cpu")).provenance(bad, ())
    check_run_folder("experiments/r")


def test_a_link_that_leads_to_a_system_folder_is_seen_through(host, tmp_path):
    (tmp_path / "innocent").symlink_to("/etc")
    with pytest.raises(UsageError, match="cannot be mounted"):
        checked(with_source(spec(host), "/hf", tmp_path / "innocent"))
    with pytest.raises(UsageError, match="cannot be mounted"):
        checked(with_source(spec(host), "/hf", tmp_path / "innocent" / ".." / "etc"))


def test_a_socket_never_enters(host, tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        path = os.path.relpath(tmp_path / "docker.sock")
        server.bind(path)
        with pytest.raises(UsageError, match="socket"):
            checked(with_source(spec(host), "/out", tmp_path / "docker.sock"))


def test_a_run_folder_behind_a_link_is_refused(host, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(UsageError, match="symbolic link"):
        checked(with_source(spec(host), "/out", tmp_path / "link"))


def test_a_link_is_refused_before_a_run_is_written_behind_it(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(UsageError, match="symbolic link"):
        check_run_folder(str(tmp_path / "link"))


def test_nixnan_must_be_named_and_be_there(host, tmp_path):
    with pytest.raises(MissingError, match="NIXNAN_SO is not set"):
        checked(spec(host, tools=("nixnan",)))
    with pytest.raises(MissingError, match="NIXNAN_SO names a path that does not exist"):
        checked(spec(host, tools=("nixnan",), NIXNAN_SO=str(tmp_path / "no.so")))
    library = tmp_path / "nixnan.so"
    library.touch()
    mounts = checked(spec(host, tools=("nixnan",), NIXNAN_SO=str(library))).mounts
    assert [m for m in mounts if m.target == "/opt/lab/nixnan.so"] == [
        Mount(source=str(library), target="/opt/lab/nixnan.so", read_only=True)
    ]
