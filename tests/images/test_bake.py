"""docker-bake.json is what the images say, and buildx reads it as lab's own build calls would be."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise

import pytest

from lab.images.arguments import PIP_VARIABLES, PROVENANCE
from lab.images.build import build_argv
from lab.images.builders import Builder
from lab.images.docker_cli import docker_programs
from lab.images.targets import targets
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
