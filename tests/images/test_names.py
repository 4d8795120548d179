"""A name without a registry would be pulled from a stranger; lab's own names cannot be."""

from __future__ import annotations

import subprocess

import pytest

from lab.core.step import Step
from lab.images.check import UNPRIVILEGED, check
from lab.images.container import HostContext, container_spec
from lab.images.names import registry_of, repository_of
from lab.images.smoke import docker_run_arguments
from lab.images.spec import load
from lab.images.targets import targets


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
