"""image.toml is read strictly; a name selects an image's targets, or one of them."""

from __future__ import annotations

import pytest

from lab.errors import ConfigError, UsageError
from lab.images import spec as images
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
