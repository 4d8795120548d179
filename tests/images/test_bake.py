"""docker-bake.json is what the images say; a digest is written after its base, and builds go by it."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import pairwise

import msgspec
import pytest

from lab.errors import EngineError
from lab.images import spec as images
from lab.images.build import PIP_VARIABLES, PROVENANCE, build_argv
from lab.images.docker_cli import Builder, docker_programs
from lab.images.targets import targets, targets_of
from lab.images.wheel import Wheel
from tests.command import script
from tests.conftest import ROOT

scripts = script("images")
FILE = scripts.BAKE_FILE
DOCUMENT = json.loads(FILE.read_text())
TARGETS = targets()


def test_the_file_is_what_the_images_say():
    assert FILE.read_text() == scripts.render_bake(), "make bake"


def test_every_image_is_a_target_and_all_are_built_by_default():
    assert list(DOCUMENT["target"]) == DOCUMENT["group"]["default"]["targets"] == [t.name for t in TARGETS]
    for target in TARGETS:
        said = DOCUMENT["target"][target.name]
        assert (ROOT / said["dockerfile"]).is_file()
        variable = scripts.base_variable(target)
        assert said["args"]["BASE_IMAGE"] == f"${{{variable}}}"
        assert DOCUMENT["variable"][variable]["default"] == target.base_ref
        assert said["tags"] == [f"${{REGISTRY}}lab/{target.name}:${{TAG}}"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_a_target_gets_the_arguments_that_labs_own_build_gives(target, tmp_path, monkeypatch):
    for name in PIP_VARIABLES:
        monkeypatch.setenv(name, "1")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    argv = build_argv(
        target,
        Builder(docker="docker", argv=("docker",)),
        Wheel(name="w", sha256="s"),
        base=None,
        iidfile=tmp_path / "i",
        root=ROOT,
    )
    given = {word.split("=")[0] for before, word in pairwise(argv) if before == "--build-arg"}
    assert given == set(DOCUMENT["target"][target.name]["args"])
    declared = (ROOT / target.dockerfile).read_text()
    assert all(f"\nARG {name}" in declared for name in given), (
        "an argument that no line reads is lost in silence"
    )


def test_every_variable_that_a_target_reads_is_declared():
    text = FILE.read_text()
    assert all(f'"${{{name}}}"' in text or name in ("REGISTRY", "TAG") for name in DOCUMENT["variable"])
    locks = {scripts.lock_variable(target) for target in TARGETS}
    assert locks | set(PROVENANCE) - {"LAB_LOCK_SHA256"} <= set(DOCUMENT["variable"])


def test_buildx_itself_reads_the_file():
    docker = next(iter(docker_programs()), None)
    if (
        docker is None
        or subprocess.run([docker, "buildx", "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("docker buildx is not here")
    done = subprocess.run(
        [docker, "buildx", "bake", "--print"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)["target"]
    assert {name: one["tags"] for name, one in read.items()} == {t.name: [f"{t.ref}:latest"] for t in TARGETS}


DIGEST = "sha256:" + "ab" * 32


def test_a_pin_is_written_behind_its_base_once_and_builds_go_by_it(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "images/pascal", tmp_path / "pascal")
    monkeypatch.setattr(scripts, "query_digest", lambda base: DIGEST)
    for _ in range(2):
        assert list(scripts.pin(["pascal"], tmp_path)) == [("pascal", DIGEST)]
    image = images.load("pascal", tmp_path)
    assert (
        image.base_digest == DIGEST and targets_of(image)[0].base_ref == f"python:3.10-slim-bookworm@{DIGEST}"
    )
    text = (tmp_path / "pascal/image.toml").read_text()
    assert text.count("base_digest") == 1 and scripts.with_digest(text, DIGEST) == text


@pytest.mark.parametrize(
    "body", ["echo 'dial tcp: lookup registry: no such host' >&2; exit 1", "echo something else"]
)
def test_a_registry_that_does_not_answer_leaves_the_tag_as_it_is(tmp_path, monkeypatch, body):
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n{body}\n")
    docker.chmod(0o755)
    monkeypatch.setattr(scripts, "docker_programs", lambda: [str(docker)])
    shutil.copytree(ROOT / "images/pascal", tmp_path / "images/pascal")
    with pytest.raises(EngineError, match="cannot get the digest") as caught:
        list(scripts.pin(["pascal"], tmp_path / "images"))
    assert "buildx" in str(caught.value)
    assert (tmp_path / "images/pascal/image.toml").read_text() == (
        ROOT / "images/pascal/image.toml"
    ).read_text()


def test_a_base_is_resolved_for_one_build_unless_image_toml_pins_it(monkeypatch):
    monkeypatch.setattr(scripts, "query_digest", lambda base: DIGEST)
    (target,) = targets_of(images.load("pascal"))
    assert scripts.pinned_base(target) == f"{target.base}@{DIGEST}"
    pinned = msgspec.structs.replace(target, base_digest="sha256:" + "cd" * 32)
    assert scripts.pinned_base(pinned) == pinned.base_ref
