"""Builders are picked by what works; one tree gives one wheel to every image; a built image is what it claims."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lab.engines.docker.engine import DockerEngine
from lab.errors import EngineError, MissingError, UsageError
from lab.images import build as imagebuild
from lab.images import check as imagecheck
from lab.images import spec as images
from lab.images.build import Builder, Wheel, build_argv, build_error, find_builder, targets
from tests.conftest import ROOT

WHEEL = Wheel(name="lab-0-py3-none-any.whl", sha256="ab" * 32)
BUILDER = Builder(docker="docker", argv=("docker", "build"), env={"DOCKER_BUILDKIT": "1"})

BUILDX = 'case "$1" in buildx) cat >/dev/null; exit 0;; esac; exit 1'
NO_BUILDX = 'echo "ERROR: BuildKit is enabled but the buildx component is missing or broken." >&2; exit 1'
OLD = '[ "$1" = build ] && [ "$DOCKER_BUILDKIT" = 1 ] && { cat >/dev/null; exit 0; }; echo "not a docker command" >&2; exit 1'
DOWN = 'echo "Cannot connect to the Docker daemon at unix:///x. Is it running?" >&2; exit 1'


@pytest.fixture
def dockers(tmp_path, monkeypatch):
    """Put stand-ins for docker on PATH, each in its own folder, in this order; -> their paths."""

    def put(*bodies: str) -> list[str]:
        paths = []
        for i, body in enumerate(bodies):
            path = tmp_path / f"bin{i}" / "docker"
            path.parent.mkdir()
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(0o755)
            paths.append(str(path))
        system = tmp_path / "system"
        system.mkdir()
        (system / "cat").symlink_to(shutil.which("cat"))
        monkeypatch.setenv("PATH", os.pathsep.join([*(str(Path(p).parent) for p in paths), str(system)]))
        return paths

    return put


def test_buildx_comes_first_wherever_it_is_on_path(dockers):
    _, second = dockers(OLD, BUILDX)
    assert find_builder() == Builder(docker=second, argv=(second, "buildx", "build", "--load"))


def test_an_older_docker_with_buildkit_serves_where_the_newer_lacks_buildx(dockers):
    _, older = dockers(NO_BUILDX, OLD)
    assert find_builder() == Builder(docker=older, argv=(older, "build"), env={"DOCKER_BUILDKIT": "1"})


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


def test_a_name_means_all_that_the_image_needs_or_one_target():
    assert [t.name for t in targets(["cpu"])] == ["cpu", "cpu-torch"]
    assert [t.name for t in targets(["cpu-torch", "cuda"])] == ["cpu-torch", "cuda"]
    with pytest.raises(UsageError, match="no image 'gpu'"):
        targets(["cpu", "gpu"])


def argv(name="cpu", base=None):
    target = next(t for t in targets() if t.name == name)
    return build_argv(target, BUILDER, WHEEL, base=base, network="host", iidfile=Path("/i"), root=ROOT)


@pytest.fixture
def plain_env(monkeypatch):
    for name in (*imagebuild.CA_VARIABLES, *imagebuild.PIP_VARIABLES, *imagebuild.PROXY_VARIABLES):
        monkeypatch.delenv(name, raising=False)


def test_the_build_command_names_base_wheel_lock_and_tag(plain_env):
    words = argv()
    assert words[:2] == ["docker", "build"] and words[-3:] == ["--tag", "lab/cpu", "."]
    given = dict(w.split("=", 1) for before, w in itertools.pairwise(words) if before == "--build-arg")
    assert given["BASE_IMAGE"] == "python:3.12-slim-bookworm" and given["LAB_WHEEL_SHA256"] == "ab" * 32
    assert given["LAB_LOCK_SHA256"] == imagebuild._sha256(ROOT / "images/cpu/requirements.lock")
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
    with pytest.raises(UsageError, match="PIP_EXTRA_INDEX_URL holds a password") as caught:
        argv()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "line, fix",
    [
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...", "SSL_CERT_FILE"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "make locks"),
        ("write /x: no space left on device", "free some space"),
        ("pull access denied, repository does not exist", "--base"),
        ("dial tcp: lookup registry on 1.1.1.1:53: no such host", "--base"),
    ],
)
def test_what_the_builder_says_becomes_the_next_thing_to_do(line, fix):
    error = build_error(targets(["cpu"])[0], "b", ["before", line, "after"])
    assert fix in error.fix and line in error.what and error.exit_code == 6


def test_an_unfamiliar_failure_shows_its_last_lines():
    error = build_error(targets(["cpu"])[0], "b", [f"line {i}" for i in range(99)])
    assert error.fix is None and "line 98" in error.what and "line 3\n" not in error.what


def test_lines_of_a_build_come_as_they_are_printed_and_the_noise_is_left_out(tmp_path):
    seen = []
    program = f"print('one'); print('#2 sha256:{'0' * 64}'); print(); print('two'); raise SystemExit(3)"
    code, tail = imagebuild.stream([sys.executable, "-c", program], env={}, cwd=tmp_path, say=seen.append)
    assert (code, seen, tail) == (3, ["one", "two"], ["one", "two"])


def test_an_interrupted_build_ends_its_client(tmp_path):
    def interrupt(line):
        raise KeyboardInterrupt

    program = "import time; print('x', flush=True); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):  # and does not wait for the sleep: the suite's limit would strike
        imagebuild.stream([sys.executable, "-c", program], env={}, cwd=tmp_path, say=interrupt)


def wheel_with(path, *requires):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "torch-2.dist-info/METADATA",
            "\n".join(["Name: torch", *(f"Requires-Dist: {r}" for r in requires)]),
        )


def wheelhouse(monkeypatch, tmp_path, *requires):
    calls = []

    def stream(argv, **_):
        calls.append(argv)
        wheel_with(Path(argv[argv.index("--dest") + 1]) / "torch-2-cp311-none-any.whl", *requires)
        return 0, []

    monkeypatch.setattr(imagebuild, "stream", stream)
    target = next(t for t in targets() if t.name == "cpu-torch")
    return calls, lambda python: imagebuild.fill_wheelhouse(target, python, tmp_path, lambda _: None)


def test_a_torch_with_cuda_is_refused_for_the_cpu_image(monkeypatch, tmp_path):
    _, fill = wheelhouse(monkeypatch, tmp_path, "filelock", "nvidia-cudnn-cu12==9; x", "triton==3")
    with pytest.raises(UsageError, match=r"GPU build .it needs nvidia-cudnn-cu12==9 and 1 more") as caught:
        fill("3.11")
    assert "CPU builds" in caught.value.fix


def test_pip_is_asked_once_for_each_python_of_a_base(monkeypatch, tmp_path):
    calls, fill = wheelhouse(monkeypatch, tmp_path, "filelock")
    for python in ("3.11", "3.11", "3.12"):
        fill(python)
    assert [argv[argv.index("--python-version") + 1] for argv in calls] == ["3.11", "3.12"]
    assert all("torch==2.13.0" in argv and "--no-deps" in argv for argv in calls)


def test_images_cannot_be_built_without_the_source_tree(tmp_path):
    with pytest.raises(MissingError, match="source tree"):
        list(imagebuild.build(["cpu"], base=None, network="host", say=print, root=tmp_path))


def test_a_plan_builds_nothing_and_needs_no_builder(dockers):
    dockers()
    rows = imagebuild.plan(["cpu"], base="local/x", network="none")
    assert [row["ref"] for row in rows] == ["lab/cpu", "lab/cpu-torch"] and "no docker program" in rows[0][
        "note"
    ]
    assert rows[1]["wheels"] == ("torch==2.13.0",) and "BASE_IMAGE=local/x" in rows[0]["argv"]


def lab(*words, **env):
    return subprocess.run(
        [sys.executable, "-m", "lab", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )


def test_check_tells_a_broken_image_from_the_sound_ones_and_fails(tmp_path):
    shutil.copytree(ROOT / "images", tmp_path / "images")
    (tmp_path / "images/cuda/image.toml").write_text("surprise = 1\n")
    done = lab("images", "check", "--json", LAB_IMAGES=str(tmp_path / "images"), PATH=str(tmp_path))
    states = {(row["image"], row["what"]): row["state"] for row in json.loads(done.stdout)}
    assert done.returncode == 1 and "cuda: image.toml" in done.stderr
    assert states["cuda", "image.toml"] == "failed" and states["rocm70", "lock"] == "ok"
    assert states["cpu", "as built"] == "skipped"


def test_the_command_line_prints_a_plan_and_refuses_an_unknown_image():
    done = lab("images", "build", "rocm70", "--dry-run", "--json")
    (row,) = json.loads(done.stdout)
    assert done.returncode == 0 and row["argv"][-3:] == ["--tag", "lab/rocm70", "."]
    assert "--file docker/rocm70.Dockerfile" in lab("images", "build", "rocm70", "--plan").stdout
    for command in ("build", "check"):
        wrong = lab("images", command, "rocm71")
        assert wrong.returncode == 2 and "there is no image 'rocm71'" in wrong.stderr


def test_the_list_of_images_needs_no_engine(tmp_path):
    done = lab("images", "list", "--json", PATH=str(tmp_path))
    assert {row["name"]: row["built"] for row in json.loads(done.stdout)}["cpu"] == {
        "lab/cpu": None,
        "lab/cpu-torch": None,
    }


# Really built.


def in_container(ref: str, *words: str) -> str:
    done = subprocess.run(
        ["docker", "run", *imagecheck.LEAST, ref, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
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
    program = "import importlib.util as u; print(*(n for n in ('lab', 'torch', 'pandas', 'triton', 'nvidia', 'pip') if u.find_spec(n)))"
    assert in_container("lab/cpu", "python3", "-c", program).split() == ["lab", "pandas"]
    assert in_container("lab/cpu-torch", "python3", "-c", program).split() == ["lab", "torch"]
    assert "matplotlib" in in_container("lab/cpu", "lab", "doctor")
    assert in_container(
        "lab/cpu-torch", "python3", "-c", "import torch; print(torch.ones(2, 2) @ torch.ones(2, 2))"
    )


@pytest.mark.docker
@pytest.mark.timeout(1200)
def test_one_changed_line_rebuilds_the_wheel_and_no_dependency(
    cpu_images, debian_base, tmp_path, monkeypatch
):
    copy_tree(ROOT, tmp_path)
    with (tmp_path / "lab/__init__.py").open("a") as file:
        file.write(f"# changed by a test in {tmp_path.name}\n")
    toml = tmp_path / "images/cpu/image.toml"
    toml.write_text(toml.read_text().replace('"lab/cpu', '"lab-test/cpu'))
    monkeypatch.setenv("LAB_IMAGES", str(tmp_path / "images"))
    shutil.copytree(ROOT / imagebuild.WHEELHOUSE, tmp_path / imagebuild.WHEELHOUSE)
    lines: list[str] = []
    try:
        changed = list(
            imagebuild.build(["cpu"], base=debian_base, network="host", say=lines.append, root=tmp_path)
        )
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


def test_the_same_tree_gives_the_same_wheel_wherever_it_lies(tmp_path):
    copy_tree(ROOT, tmp_path / "a")
    copy_tree(tmp_path / "a", tmp_path / "elsewhere" / "b")
    wheels = [imagebuild.make_wheel(tree, print) for tree in (tmp_path / "a", tmp_path / "elsewhere" / "b")]
    assert wheels[0] == wheels[1]
    sums = (tmp_path / "a" / imagebuild.DIST / "SHA256SUMS").read_text()
    assert sums == f"{wheels[0].sha256}  {wheels[0].name}\n"


def copy_tree(source: Path, to: Path) -> None:
    """What an image is built from, so that edits meanwhile do not matter."""
    for name in ("lab", "images", "docker"):
        shutil.copytree(source / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".dockerignore"):
        shutil.copy(source / name, to)
