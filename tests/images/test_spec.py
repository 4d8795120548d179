"""image.toml is read strictly; a name selects an image's targets, and no stranger answers it."""

from __future__ import annotations

import subprocess

import pytest

from lab.core.step import Step
from lab.errors import ConfigError, UsageError
from lab.images import spec as images
from lab.images.check import UNPRIVILEGED, check
from lab.images.container import HostContext, container_spec
from lab.images.smoke import docker_run_arguments
from lab.images.spec import load, registry_of, repository_of
from lab.images.targets import targets


def test_an_unknown_image_names_the_known_ones():
    with pytest.raises(UsageError, match="unknown image 'rocm71'") as caught:
        images.load("rocm71")
    assert "cpu, cuda, pascal, rocm70" in str(caught.value)
    with pytest.raises(UsageError):
        images.load("../../etc")


GOOD = """
name = "x"
summary = "s"
vendor = "none"
ref = "lab/x"
base = "b"
python = "python3"
python_version = "3.12"
dockerfile = "docker/x.Dockerfile"
"""


@pytest.mark.parametrize(
    "change, complaint",
    [
        ("surprise = 1\n", "unknown field `surprise`"),
        ("[devices]\nshm = '1g'\n", r"unknown field `shm` - at `\$.devices`"),
        ("[devices]\nshm_size = '16 GB'\n", r"at `\$.devices.shm_size`"),
        ("[[mounts]]\nsource = '/var/run/docker.sock'\ntarget = '/s'\n", r"at `\$.mounts\[0\].source`"),
        ("vendor_ = 'intel'\n", "unknown field"),
        ("[env]\nA = 1\n", "Expected `str`, got `int`"),
        ("name = 'x'\n", "not valid TOML"),
    ],
)
def test_toml_that_does_not_fit_is_refused_with_file_and_key(tmp_path, change, complaint):
    (tmp_path / "x").mkdir()
    path = tmp_path / "x" / "image.toml"
    path.write_text(GOOD + change)
    with pytest.raises(ConfigError, match=complaint) as caught:
        images.load("x", tmp_path)
    assert caught.value.location == str(path)


def test_good_toml_loads_and_another_folder_can_hold_the_images(tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "image.toml").write_text(GOOD)
    monkeypatch.setenv("LAB_IMAGES", str(tmp_path))
    assert images.names() == ["x"] and images.load("x").vendor == "none"


def test_a_name_means_all_that_the_image_needs_or_one_target():
    assert [t.name for t in targets(["cpu"])] == ["cpu", "cpu-torch"]
    assert [t.name for t in targets(["cpu-torch", "cuda"])] == ["cpu-torch", "cuda"]
    with pytest.raises(UsageError, match="unknown image 'gpu'"):
        targets(["cpu", "gpu"])


@pytest.mark.parametrize(
    "ref, registry, repository",
    [
        ("lab/cuda", None, "lab/cuda"),
        ("python", None, "python"),
        ("localhost/lab/cuda:latest", "localhost", "lab/cuda"),
        ("localhost:5000/lab/cuda", "localhost:5000", "lab/cuda"),
        ("ghcr.io/me/lab/cuda@sha256:" + "0" * 64, "ghcr.io", "me/lab/cuda"),
    ],
)
def test_a_name_is_taken_apart_as_engines_do(ref, registry, repository):
    assert (registry_of(ref), repository_of(ref)) == (registry, repository)


def test_every_image_of_lab_names_a_registry_that_no_stranger_owns():
    assert {registry_of(target.ref) for target in targets()} == {"localhost"}


def test_check_refuses_a_name_that_docker_io_would_answer(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    text = (load_path() / "pascal/image.toml").read_text()
    folder.joinpath("image.toml").write_text(
        text.replace('"pascal"', '"mine"').replace("localhost/lab/pascal", "somebody/pascal")
    )
    monkeypatch.setenv("LAB_IMAGES", str(tmp_path))
    row = next(row for row in check(["mine"]) if row.check == "image.toml")
    assert row.state == "failed" and "localhost/somebody/pascal" in row.detail


def load_path():
    from lab.images.spec import images_root

    return images_root()


def test_no_container_of_check_or_smoke_pulls_its_image():
    host = HostContext(run_dir="/r", hf_cache="/h", cache="/c", uid=1, gid=1)
    spec = container_spec(load("cpu"), Step(name="x", argv=("true",)), [], host)
    words = " ".join(docker_run_arguments(spec))
    assert "--pull never" in words and "--pull never" in " ".join(UNPRIVILEGED)


@pytest.mark.docker
def test_the_engine_says_that_it_lacks_the_image_instead_of_pulling_it():
    done = subprocess.run(
        ["docker", "run", *UNPRIVILEGED, "localhost/lab/never-built", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 125 and "no such image" in done.stderr.lower()
