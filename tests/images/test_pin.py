"""A digest is written after its base, and builds go by it."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from lab.errors import EngineError
from lab.images import spec as images
from lab.images.targets import targets_of
from tests.command import script
from tests.conftest import ROOT

imagepin = script("images")

DIGEST = "sha256:" + "ab" * 32


def test_a_pin_is_written_behind_its_base_once_and_builds_go_by_it(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "images/pascal", tmp_path / "pascal")
    monkeypatch.setattr(imagepin, "query_digest", lambda base: DIGEST)
    for _ in range(2):
        assert list(imagepin.pin(["pascal"], tmp_path)) == [("pascal", DIGEST)]
    image = images.load("pascal", tmp_path)
    assert (
        image.base_digest == DIGEST and targets_of(image)[0].base_ref == f"python:3.10-slim-bookworm@{DIGEST}"
    )
    text = (tmp_path / "pascal/image.toml").read_text()
    assert text.count("base_digest") == 1 and imagepin.with_digest(text, DIGEST) == text


@pytest.mark.parametrize(
    "body", ["echo 'dial tcp: lookup registry: no such host' >&2; exit 1", "echo something else"]
)
def test_a_registry_that_does_not_answer_leaves_the_tag_as_it_is(tmp_path, monkeypatch, body):
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n{body}\n")
    docker.chmod(0o755)
    monkeypatch.setattr(imagepin, "docker_programs", lambda: [str(docker)])
    shutil.copytree(ROOT / "images/pascal", tmp_path / "images/pascal")
    with pytest.raises(EngineError, match="cannot get the digest") as caught:
        list(imagepin.pin(["pascal"], tmp_path / "images"))
    assert "buildx" in str(caught.value)
    assert (tmp_path / "images/pascal/image.toml").read_text() == (
        ROOT / "images/pascal/image.toml"
    ).read_text()


def test_a_base_is_resolved_for_one_build_unless_image_toml_pins_it(monkeypatch):
    monkeypatch.setattr(imagepin, "query_digest", lambda base: DIGEST)
    (target,) = targets_of(images.load("pascal"))
    assert imagepin.pinned_base(target) == f"{target.base}@{DIGEST}"
    pinned = msgspec.structs.replace(target, base_digest="sha256:" + "cd" * 32)
    assert imagepin.pinned_base(pinned) == pinned.base_ref
