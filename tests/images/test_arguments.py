"""What reaches a build from lab's data and from the environment."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lab.errors import UsageError
from lab.images import arguments
from lab.images.build import build_argv
from lab.images.builders import Builder
from lab.images.targets import targets
from lab.images.tree import file_hash
from lab.images.wheel import Wheel
from tests.conftest import ROOT

WHEEL = Wheel(name="lab-0-py3-none-any.whl", sha256="ab" * 32)


BUILDER = Builder(docker="docker", argv=("docker", "build"), env={"DOCKER_BUILDKIT": "1"})


def argv(name="cpu", base=None):
    target = next(t for t in targets() if t.name == name)
    return build_argv(target, BUILDER, WHEEL, base=base, iidfile=Path("/i"), root=ROOT)


@pytest.fixture
def plain_env(monkeypatch):
    for name in (*arguments.CA_VARIABLES, *arguments.PIP_VARIABLES, *arguments.PROXY_VARIABLES):
        monkeypatch.delenv(name, raising=False)


def test_the_build_command_names_base_wheel_lock_and_tag(plain_env):
    words = argv()
    assert words[:2] == ["docker", "build"] and words[-3:] == ["--tag", "localhost/lab/cpu", "."]
    given = dict(w.split("=", 1) for before, w in itertools.pairwise(words) if before == "--build-arg")
    assert given["BASE_IMAGE"] == "python:3.12-slim-bookworm" and given["LAB_WHEEL_SHA256"] == "ab" * 32
    assert given["LAB_LOCK_SHA256"] == file_hash(ROOT / "images/cpu/requirements.lock")
    assert "--secret" not in words and "PIP_INDEX_URL" not in given
    assert "BASE_IMAGE=local/x" in argv(base="local/x")


def test_certificate_and_index_of_the_environment_reach_the_build(plain_env, monkeypatch, tmp_path):
    (tmp_path / "ca.pem").write_text("x")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example.org/simple")
    assert (
        f"id=ca,src={tmp_path}/ca.pem" in argv()
        and "PIP_INDEX_URL=https://index.example.org/simple" in argv()
    )


def test_an_index_with_a_password_is_refused_and_not_repeated(plain_env, monkeypatch):
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://a.example.org/s https://me:hunter2@b.example.org/s")
    with pytest.raises(UsageError, match="PIP_EXTRA_INDEX_URL contains a password") as caught:
        argv()
    assert "hunter2" not in str(caught.value)


def test_an_argument_of_the_user_reaches_the_dockerfile_that_declares_it():
    cuda = next(t for t in targets() if t.name == "cuda")
    given = arguments.parse_given(["NSYS_PACKAGE="], targets(["cuda", "cpu"]), ROOT)
    assert given == {"NSYS_PACKAGE": ""}
    made = arguments.build_arguments(cuda, WHEEL, base=None, user_arguments=given, root=ROOT)
    assert made["NSYS_PACKAGE"] == ""
    assert "NSYS_PACKAGE" not in arguments.build_arguments(
        targets(["cpu"])[0], WHEEL, base=None, user_arguments=given, root=ROOT
    )


@pytest.mark.parametrize(
    "word, says",
    [("NSYS_PACKAGE", "NAME=VALUE"), ("NSYS=1", "no Dockerfile"), ("BASE_IMAGE=x", "sets BASE_IMAGE itself")],
)
def test_an_argument_that_nothing_reads_or_lab_sets_is_an_error(word, says):
    with pytest.raises(UsageError, match=says):
        arguments.parse_given([word], targets(["cuda"]), ROOT)
