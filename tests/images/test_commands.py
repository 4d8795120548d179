"""`lab images` on the command line."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from lab.cli.main import cli
from tests.command import lab as run_lab
from tests.conftest import ROOT


def lab(*words, **env):
    return run_lab(*words, cwd=ROOT, env=env)


def test_check_tells_a_broken_image_from_the_sound_ones_and_fails(tmp_path):
    shutil.copytree(ROOT / "images", tmp_path / "images")
    (tmp_path / "images/cuda/image.toml").write_text("surprise = 1\n")
    done = lab("images", "check", "--json", LAB_IMAGES=str(tmp_path / "images"), PATH=str(tmp_path))
    states = {(row["image"], row["what"]): row["state"] for row in json.loads(done.stdout)}
    assert done.returncode == 1 and "cuda: image.toml" in done.stderr
    assert states["cuda", "image.toml"] == "failed"
    assert states["cpu", "as built"] == "skipped"


def test_the_command_line_prints_a_plan_and_refuses_an_unknown_image():
    done = lab("images", "build", "rocm70", "--dry-run")
    assert done.returncode == 0 and done.stdout.endswith(" --tag localhost/lab/rocm70 .\n")
    assert "--file docker/rocm70.Dockerfile" in done.stdout
    for command in ("build", "check"):
        wrong = lab("images", command, "rocm71")
        assert wrong.returncode == 2 and "unknown image 'rocm71'" in wrong.stderr


def test_the_list_of_images_needs_no_engine(tmp_path):
    done = lab("images", "list", "--json", PATH=str(tmp_path))
    rows = json.loads(done.stdout)
    assert "cpu" in {row["name"] for row in rows} and {row["built"] for row in rows} == {None}
    assert done.returncode == 0 and "which images are here is not known" in done.stderr


@pytest.mark.parametrize("engine, mapping", [("PODMAN", "rootless-podman"), ("DOCKER", "rootless-docker")])
def test_a_smoke_maps_users_as_runs_do_on_this_engine(tmp_path, monkeypatch, engine, mapping):
    """A rootless engine's container could not write its results under the caller's number."""
    pytest.importorskip("docker")
    from tests.engines.docker import test_client

    asked = []
    monkeypatch.setattr("lab.images.smoke.smoke", lambda *_, box, **__: asked.append(box) or [])
    said = getattr(test_client, engine)
    with test_client.an_engine(tmp_path / "e.sock", **said, SecurityOptions=["name=rootless"]) as env:
        monkeypatch.setenv("DOCKER_HOST", env["DOCKER_HOST"])
        CliRunner().invoke(cli, ["images", "smoke", "cpu"], catch_exceptions=False)
    assert [box.user_mapping for box in asked] == [mapping]
