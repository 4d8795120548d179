"""Images are built from the source tree, with what reaches a build; a built image is what it claims."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from lab.engines.docker.engine import DockerEngine
from lab.errors import MissingError, UsageError
from lab.images import build as arguments
from lab.images import check as imagecheck
from lab.images import spec as images
from lab.images.build import build, build_argv, build_error, plan
from lab.images.docker_cli import Builder
from lab.images.targets import file_hash, targets
from lab.images.wheel import WHEELHOUSE, Wheel
from tests.built import REPOSITORY, TESTS, images_folder, own_image_names
from tests.command import lab
from tests.conftest import ROOT
from tests.images.made import copy_tree, in_container


def test_images_cannot_be_built_without_the_source_tree(tmp_path):
    with pytest.raises(MissingError, match="source tree"):
        list(build(["cpu"], base=None, say=print, root=tmp_path))


def test_a_plan_builds_nothing_and_needs_no_builder(dockers):
    dockers()
    commands = plan(["cpu"], base="local/x")
    assert [line.split()[-2] for line in commands] == ["localhost/lab/cpu", "localhost/lab/cpu-torch"]
    assert all("BASE_IMAGE=local/x" in line and "DOCKER_BUILDKIT=1" in line for line in commands)


@pytest.mark.docker
@pytest.mark.timeout(1200)
def test_both_images_hold_the_same_wheel_and_pass_their_checks(cpu_images, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert DockerEngine(images.load("cpu")).image_record().checked is None
    assert len({image.wheel_sha256 for image in cpu_images.values()}) == 1
    rows = {(row.image, row.check): row for row in imagecheck.check(["cpu"])}
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
    assert in_container(cpu_images["cpu"].ref, "python3", "-c", program).split() == ["lab", "pandas"]
    assert in_container(cpu_images["cpu-torch"].ref, "python3", "-c", program).split() == ["lab", "torch"]
    assert "matplotlib" in in_container(cpu_images["cpu"].ref, "lab", "doctor")
    product = "import torch; print(torch.ones(2, 2) @ torch.ones(2, 2))"
    assert in_container(cpu_images["cpu-torch"].ref, "python3", "-c", product)


@pytest.mark.docker
@pytest.mark.timeout(1200)
def test_one_changed_line_rebuilds_the_wheel_and_no_dependency(
    cpu_images, debian_base, tmp_path, monkeypatch
):
    copy_tree(ROOT, tmp_path)
    with (tmp_path / "lab/__init__.py").open("a") as file:
        file.write(f"# {uuid.uuid4()}: no build before this one has it in its cache\n")
    toml = tmp_path / "images/cpu/image.toml"
    changed_ref = f"{REPOSITORY}/changed-{uuid.uuid4().hex[:8]}"
    toml.write_text(toml.read_text().replace('"localhost/lab/cpu', f'"{changed_ref}'))
    monkeypatch.setenv("LAB_IMAGES", str(tmp_path / "images"))
    shutil.copytree(ROOT / WHEELHOUSE, tmp_path / WHEELHOUSE)
    lines: list[str] = []
    try:
        changed = list(build(["cpu"], base=debian_base, say=lines.append, root=tmp_path))
    finally:
        subprocess.run(
            ["docker", "image", "rm", changed_ref, f"{changed_ref}-torch"], capture_output=True, check=False
        )
    assert {image.wheel_sha256 for image in changed}.isdisjoint(
        image.wheel_sha256 for image in cpu_images.values()
    )
    cached = {line.split()[0] for line in lines if line.endswith("CACHED")}
    ran = [line for line in lines if " RUN " in line and line.split()[0] not in cached]
    assert ran and all("build/images/dist" in line for line in ran), ran
    assert not any("Downloading" in line for line in lines)


# The tests' images and a user's


def test_the_tests_build_under_names_of_their_own_with_a_label():
    """Two users' images were replaced by tests, once with a mutated lab in them."""
    with own_image_names():
        argvs = [argv(target.name, "local/x") for target in targets()]
    tags = [argv[argv.index("--tag") + 1] for argv in argvs]
    assert len(tags) == 5 and all(tag.startswith(f"{REPOSITORY}/") for tag in tags), tags
    assert all(argv[argv.index("--label") + 1] == "lab.test=1" for argv in argvs)
    argvs = [argv(target.name, "local/x") for target in targets()]
    assert not any("--label" in argv or REPOSITORY in str(argv) for argv in argvs), "a user's build"


def image_record(ref: str) -> dict:
    done = subprocess.run(["docker", "image", "inspect", ref], capture_output=True, check=True)
    return json.loads(done.stdout)[0]


@pytest.mark.docker
@pytest.mark.timeout(1200)
def test_what_the_fixture_builds_takes_no_name_of_a_user(cpu_images):
    """An image that another checkout on this engine built as well has that checkout's name, too."""
    for built in cpu_images.values():
        record = image_record(built.id)
        assert record["RepoTags"] and all(tag.startswith(TESTS) for tag in record["RepoTags"])
        assert record["Config"]["Labels"]["lab.test"] == "1"


@pytest.fixture
def mutated(cpu_images, tmp_path, monkeypatch):
    """An image whose lab was changed in one place; LAB_IMAGES names it as the user's cpu image."""
    ref = f"{REPOSITORY}/mutated-{uuid.uuid4().hex[:8]}"
    change = "import lab; open(lab.__file__, 'a').write('# mutated')"
    dockerfile = f'FROM {cpu_images["cpu"].ref}\nUSER 0\nRUN python3 -c "{change}"\nUSER 1000:1000\n'
    subprocess.run(["docker", "build", "-q", "-t", ref, "-"], input=dockerfile, text=True, check=True)
    folder = tmp_path / "images"
    shutil.copytree(images_folder() / "cpu", folder / "cpu")
    toml = folder / "cpu/image.toml"
    toml.write_text(toml.read_text().replace(f'ref = "{cpu_images["cpu"].ref}"', f'ref = "{ref}"', 1))
    monkeypatch.setenv("LAB_IMAGES", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LAB_REGISTRY", raising=False)
    yield ref
    subprocess.run(["docker", "image", "rm", "-f", ref], capture_output=True, check=False)


@pytest.mark.docker
@pytest.mark.timeout(1200)
def test_a_changed_lab_in_an_image_is_called_out_by_check_and_setup(mutated):
    name = mutated.rpartition("/")[2]
    # Only `check` is asked for a verdict; `setup` mentions the difference.
    for words, code in ((["images", "check", name], 1), (["setup", "cpu", "--dry-run"], 0)):
        done = lab(*words)
        text = done.stdout + done.stderr
        assert done.returncode == code, text
        assert f"{mutated} holds lab" in text and f"lab images build {name}" in text, text
        assert text.count("holds lab") == 1, "the other image's lab is this one"


@pytest.mark.parametrize(
    "line, fix",
    [
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...", "SSL_CERT_FILE"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "make locks"),
        ("write /x: no space left on device", "free some space"),
        ("pull access denied, repository does not exist", "--base"),
        ("dial tcp: lookup registry on 1.1.1.1:53: no such host", "--base"),
        ("urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>", "NSYS_PACKAGE="),
        ("E: Unable to locate package nsight-systems-cli", "NSYS_PACKAGE="),
    ],
)
def test_what_the_builder_says_becomes_the_next_thing_to_do(line, fix):
    error = build_error(targets(["cpu"])[0], "b", ["before", line, "after"])
    assert fix in error.fix and line in error.problem and error.exit_code == 6


def test_an_unfamiliar_failure_shows_its_last_lines():
    error = build_error(targets(["cpu"])[0], "b", [f"line {i}" for i in range(99)])
    assert error.fix is None and "line 98" in error.problem and "line 3\n" not in error.problem


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
