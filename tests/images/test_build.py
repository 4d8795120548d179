"""Images are built from the source tree; a built image is what it claims."""

from __future__ import annotations

import shutil
import subprocess
import uuid

import pytest

from lab.engines.docker.engine import DockerEngine
from lab.errors import MissingError
from lab.images import check as imagecheck
from lab.images import spec as images
from lab.images.build import build, plan
from lab.images.wheelhouse import WHEELHOUSE
from tests.conftest import ROOT
from tests.images.tree import copy_tree


def test_images_cannot_be_built_without_the_source_tree(tmp_path):
    with pytest.raises(MissingError, match="source tree"):
        list(build(["cpu"], base=None, network="host", say=print, root=tmp_path))


def test_a_plan_builds_nothing_and_needs_no_builder(dockers):
    dockers()
    rows = plan(["cpu"], base="local/x", network="none")
    assert [row["ref"] for row in rows] == [
        "localhost/lab/cpu",
        "localhost/lab/cpu-torch",
    ] and "no docker program" in rows[0]["note"]
    assert rows[1]["wheels"] == ("torch==2.13.0",) and "BASE_IMAGE=local/x" in rows[0]["argv"]


def in_container(ref: str, *words: str) -> str:
    done = subprocess.run(
        ["docker", "run", *imagecheck.UNPRIVILEGED, ref, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.docker
@pytest.mark.timeout(1200)
def test_both_images_hold_the_same_wheel_and_pass_their_checks(cpu_images, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert DockerEngine(images.load("cpu")).image_record().checked is None
    assert len({image.wheel_sha256 for image in cpu_images.values()}) == 1
    rows = {(row.image, row.what): row for row in imagecheck.check(["cpu"])}
    for name, image in cpu_images.items():
        assert (
            rows[name, "as built"].state == "ok" and image.wheel_sha256[:12] in rows[name, "as built"].detail
        )
        assert image.id.startswith("sha256:") and image.size_bytes > 0
    assert not [row for row in rows.values() if row.state == "failed"]
    kept = DockerEngine(images.load("cpu")).image_record().checked
    assert kept and kept.ok and kept.versions["torch"].startswith("2."), (
        "what a run's manifest says of its image"
    )


@pytest.mark.docker
@pytest.mark.timeout(1200)
def test_a_stranger_without_network_can_use_both_and_only_workloads_have_torch(cpu_images):
    names = ("lab", "torch", "pandas", "triton", "nvidia", "pip")
    program = f"import importlib.util as u; print(*(n for n in {names} if u.find_spec(n)))"
    assert in_container("localhost/lab/cpu", "python3", "-c", program).split() == ["lab", "pandas"]
    assert in_container("localhost/lab/cpu-torch", "python3", "-c", program).split() == ["lab", "torch"]
    assert "matplotlib" in in_container("localhost/lab/cpu", "lab", "doctor")
    assert in_container(
        "localhost/lab/cpu-torch", "python3", "-c", "import torch; print(torch.ones(2, 2) @ torch.ones(2, 2))"
    )


@pytest.mark.docker
@pytest.mark.timeout(1200)
def test_one_changed_line_rebuilds_the_wheel_and_no_dependency(
    cpu_images, debian_base, tmp_path, monkeypatch
):
    copy_tree(ROOT, tmp_path)
    with (tmp_path / "lab/__init__.py").open("a") as file:
        file.write(f"# {uuid.uuid4()}: no build before this one has it in its cache\n")
    toml = tmp_path / "images/cpu/image.toml"
    toml.write_text(toml.read_text().replace('"localhost/lab/cpu', '"lab-test/cpu'))
    monkeypatch.setenv("LAB_IMAGES", str(tmp_path / "images"))
    shutil.copytree(ROOT / WHEELHOUSE, tmp_path / WHEELHOUSE)
    lines: list[str] = []
    try:
        changed = list(build(["cpu"], base=debian_base, network="host", say=lines.append, root=tmp_path))
    finally:
        subprocess.run(
            ["docker", "image", "rm", "lab-test/cpu", "lab-test/cpu-torch"], capture_output=True, check=False
        )
    assert {image.wheel_sha256 for image in changed}.isdisjoint(
        image.wheel_sha256 for image in cpu_images.values()
    )
    cached = {line.split()[0] for line in lines if line.endswith("CACHED")}
    ran = [line for line in lines if " RUN " in line and line.split()[0] not in cached]
    assert ran and all("build/images/dist" in line for line in ran), ran
    assert not any("Downloading" in line for line in lines)
