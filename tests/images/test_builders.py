"""Builders are chosen by what works here."""

from __future__ import annotations

import pytest

from lab.errors import EngineError
from lab.images import builders
from lab.images.builders import Builder, find_builder

HOST = {"DOCKER_HOST": "unix:///run/mine/docker.sock"}


@pytest.fixture(autouse=True)
def one_engine(monkeypatch):
    """No DOCKER_HOST, and one engine whose socket this user may use."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(builders, "endpoint_of", lambda _: HOST["DOCKER_HOST"])


BUILDX = 'case "$1" in buildx) cat >/dev/null; exit 0;; esac; exit 1'


NO_BUILDX = 'echo "ERROR: BuildKit is enabled but the buildx component is missing or broken." >&2; exit 1'


OLD = '[ "$1" = build ] && [ "$DOCKER_BUILDKIT" = 1 ] && { cat >/dev/null; exit 0; }; '
OLD += 'echo "not a docker command" >&2; exit 1'


DOWN = 'echo "Cannot connect to the Docker daemon at unix:///x. Is it running?" >&2; exit 1'


def test_buildx_comes_first_wherever_it_is_on_path(dockers):
    _, second = dockers(OLD, BUILDX)
    assert find_builder() == Builder(docker=second, argv=(second, "buildx", "build", "--load"), env=HOST)


def test_an_older_docker_with_buildkit_serves_where_the_newer_lacks_buildx(dockers):
    _, older = dockers(NO_BUILDX, OLD)
    env = {"DOCKER_BUILDKIT": "1", **HOST}
    assert find_builder() == Builder(docker=older, argv=(older, "build"), env=env)


def test_without_a_working_builder_the_error_names_what_to_install(dockers):
    dockers(NO_BUILDX)
    with pytest.raises(EngineError, match="buildx component is missing") as caught:
        find_builder()
    assert "docker-buildx" in caught.value.fix


def test_without_an_engine_the_error_says_so(dockers):
    dockers(DOWN)
    with pytest.raises(EngineError, match="Cannot connect") as caught:
        find_builder()
    assert caught.value.fix == "start the Docker engine"


def test_without_docker_the_error_says_so(dockers):
    dockers()
    with pytest.raises(EngineError, match="no docker program on PATH"):
        find_builder()


def test_a_build_goes_to_the_engine_that_runs_use_and_not_to_the_contexts(dockers, monkeypatch):
    """A user's own rootless engine, beside a context of another one."""
    monkeypatch.setenv("DOCKER_CONTEXT", "other")
    dockers(f'[ "$DOCKER_HOST" = {HOST["DOCKER_HOST"]} ] || exit 1; cat >/dev/null; echo 3.12')
    builder = find_builder()
    assert builders.base_python(builder, "base") == "3.12"


def test_no_build_is_sent_to_podman(dockers, monkeypatch):
    monkeypatch.setattr(builders, "endpoint_of", lambda _: "unix:///run/user/7/podman/podman.sock")
    dockers(OLD, BUILDX)
    assert find_builder().env == {}
