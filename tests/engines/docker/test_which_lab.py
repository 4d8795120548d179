"""A stale image is never measured under another commit: a small private image with an old lab in it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import msgspec
import pytest

from lab.core.content import content_sha256
from lab.core.manifest import ImageRecord, Lab
from lab.core.options import Options
from lab.core.plan import Experiment, Plan
from lab.core.provenance import lab_with_content
from lab.core.run import Run
from lab.core.snapshot import take_snapshot
from lab.core.step import Status, Step
from lab.core.stop import Stop
from lab.driver.drive import drive, resume
from lab.driver.execute import StepRunner
from lab.engines.docker import leftovers, which_lab
from lab.engines.docker.client import connect
from lab.engines.docker.engine import DockerEngine
from lab.engines.docker.leftovers import driver_labels
from lab.engines.docker.which_lab import Inside, choose, lab_inside
from lab.errors import StepFailed, UsageError
from lab.images import spec as images
from tests.core.test_manifest import a_manifest

REF = "lab-test/stale:which-lab"
WHICH = ("python", "-m", "lab.core.content")
OURS = Lab(version="1", sha256="1" * 64, origin="checkout")
TOML = f"""
name = "stale"
summary = "an old lab"
vendor = "none"
ref = "{REF}"
base = "b"
python = "python3"
python_version = "3.11"
dockerfile = "docker/x.Dockerfile"
"""


# The choice


@pytest.mark.parametrize(
    ("origin", "inside", "policy", "mounted"),
    [
        ("checkout", "1", "auto", False),
        ("checkout", "2", "auto", True),
        ("checkout", None, "auto", True),
        ("checkout", "2", "refuse", None),
        ("checkout", "1", "refuse", False),
        ("installed", "1", "auto", False),
        ("installed", "2", "auto", None),
        ("installed", None, "auto", None),
        ("installed", "2", "mount", True),
        ("installed", "1", "mount", False),
    ],
)
def test_a_checkout_is_mounted_over_another_lab_and_an_installed_one_is_refused(
    origin, inside, policy, mounted
):
    ours = msgspec.structs.replace(OURS, origin=origin)
    image = ImageRecord(name="x", ref="lab/x", id="sha256:ab", lab_version="0.9")
    image = msgspec.structs.replace(image, lab_sha256=inside and inside * 64)
    if mounted is None:
        with pytest.raises(UsageError, match="lab/x holds another lab than this host") as caught:
            choose(ours, image, policy)
        assert "--host-lab mount" in str(caught.value) and "1 (111111111111) here" in str(caught.value)
    else:
        assert choose(ours, image, policy) is mounted


# On a real engine


@pytest.fixture(scope="module")
def stale(debian_base, tmp_path_factory) -> Path:
    """An image whose Python imports an old lab, which knows nothing of the check; -> that lab."""
    context = tmp_path_factory.mktemp("stale")
    package = context / "lab" / "core"
    package.mkdir(parents=True)
    (context / "lab" / "__init__.py").write_text('__version__ = "0.0.9"\n')
    (package / "__init__.py").write_text("")
    (package / "content.py").write_text("print('measured by the old lab')\n")
    (context / "Dockerfile").write_text(
        f"FROM {debian_base}\nCOPY lab /usr/lib/python3/dist-packages/lab\nWORKDIR /out\n"
    )
    subprocess.run(["docker", "build", "-q", "-t", REF, context], check=True, capture_output=True)
    yield context / "lab"
    subprocess.run(["docker", "rmi", REF], check=True, capture_output=True)


@pytest.fixture
def image(stale, tmp_path, monkeypatch) -> images.Image:
    folder = tmp_path / "images" / "stale"
    folder.mkdir(parents=True)
    (folder / "image.toml").write_text(TOML)
    monkeypatch.setenv("LAB_IMAGES", str(folder.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return images.load("stale")


def an_experiment(out: Path, *steps: Step, **flags) -> Experiment:
    given = {"image": "stale", "analysis": "none", "output_dir": out, "quiet": True, **flags}
    return Experiment("semicrf", lambda site, root: Plan(steps=steps), Options(**given))


def a_step(name: str = "s0", argv: tuple[str, ...] = WHICH) -> Step:
    return Step(name=name, argv=argv, folder=name)


def log_of(out: Path, name: str = "s0") -> str:
    return (out / name / "run_output.log").read_text()


@pytest.mark.docker
def test_the_lab_in_an_image_is_hashed_in_it_once(image, stale, monkeypatch):
    engine = DockerEngine(image)
    inside = lab_inside(engine.daemon(), str(engine.image_record().id), "python3")
    assert inside == Inside(content_sha256(stale), "0.0.9")
    monkeypatch.setattr(which_lab, "_ask", lambda *_: pytest.fail("asked again"))
    assert lab_inside(engine.daemon(), str(engine.image_record().id), "python3") == inside
    named = connect().client.containers(all=True, filters={"name": "lab-which-"})
    assert [one for one in named if one["Image"] == engine.image_record().id] == []


@pytest.mark.docker
def test_reap_leaves_a_container_that_looks_into_an_image_to_its_driver(image, debian_base, monkeypatch):
    client, labels = connect().client, {"lab.run_dir": "none", **driver_labels()}
    made = client.create_container(debian_base, ["true"], labels=labels)["Id"]
    orphan = client.create_container(debian_base, ["true"], labels={**labels, "lab.pid_started": "1"})["Id"]
    try:
        monkeypatch.setattr(leftovers, "leftovers", only(made, orphan, of=leftovers.leftovers))
        assert [one.container for one in leftovers.reap()] == [orphan]
    finally:
        client.remove_container(made)


def only(*containers: str, of):
    """The engine is everybody's: a test reaps nothing of others."""
    return lambda **how: [one for one in of(**how) if one.container in containers]


@pytest.mark.docker
def test_an_image_without_a_lab_or_a_python_that_works_holds_none(image, debian_base):
    engine = DockerEngine(image)
    bare = str(engine.image_record(debian_base).id)
    assert lab_inside(engine.daemon(), bare, "python3") == Inside()
    assert lab_inside(engine.daemon(), bare, "sh") == Inside()


@pytest.mark.docker
def test_a_checkout_measures_itself_in_a_stale_image_and_says_so(image, stale, tmp_path, capsys):
    out, ours = tmp_path / "run", lab_with_content()
    drive(an_experiment(out, a_step(), quiet=False))
    manifest = Run.open(out).manifest
    assert json.loads(log_of(out).splitlines()[-1])["sha256"] == ours.sha256
    assert manifest.lab == msgspec.structs.replace(ours, used="mounted")
    assert manifest.steps[0].lab_sha256 == ours.sha256
    assert (manifest.image.lab_version, manifest.image.lab_sha256) == ("0.0.9", content_sha256(stale))
    assert "Engine" in manifest.engine_version and "API" in manifest.engine_version
    assert f"mounted read-only into {REF}" in capsys.readouterr().err


@pytest.mark.docker
def test_a_step_cannot_change_the_lab_that_is_mounted(image, tmp_path):
    code = "import glob; open(glob.glob('/out/.lab/*/lab/__init__.py')[0], 'a')"
    with pytest.raises(StepFailed, match="Read-only file system"):
        drive(an_experiment(tmp_path / "run", a_step(argv=("python", "-c", code))))


@pytest.mark.docker
@pytest.mark.parametrize(("origin", "policy"), [("installed", "auto"), ("checkout", "refuse")])
def test_what_may_not_be_mounted_is_refused_before_anything_is_written(
    image, tmp_path, monkeypatch, origin, policy
):
    ours = msgspec.structs.replace(lab_with_content(), origin=origin)
    monkeypatch.setattr("lab.core.provenance.lab_with_content", lambda: ours)
    with pytest.raises(UsageError, match=r"another lab than this host: 0\.0\.9"):
        drive(an_experiment(tmp_path / "run", a_step(), host_lab=policy))
    assert not (tmp_path / "run").exists()


@pytest.mark.docker
def test_an_image_with_this_very_lab_runs_its_own(image, stale, tmp_path, debian_base):
    """Also where the run's folder was moved to a host with another state of its checkout."""
    context, ref = tmp_path / "context", "lab-test/fresh:which-lab"
    take_snapshot(context, lab_with_content())
    (context / "Dockerfile").write_text(
        f"FROM {debian_base}\nCOPY .lab/*/lab /usr/lib/python3/dist-packages/lab\nWORKDIR /out\n"
    )
    subprocess.run(["docker", "build", "-q", "-t", ref, context], check=True, capture_output=True)
    try:
        toml = tmp_path / "images" / "stale" / "image.toml"
        toml.write_text(TOML.replace(REF, ref))
        drive(an_experiment(tmp_path / "run", a_step(), host_lab="refuse"))
    finally:
        subprocess.run(["docker", "rmi", ref], check=True, capture_output=True)
    manifest = Run.open(tmp_path / "run").manifest
    assert manifest.lab.used == "image" and manifest.image.lab_sha256 == manifest.lab.sha256
    assert manifest.steps[0].lab_sha256 == manifest.lab.sha256


@pytest.mark.docker
def test_a_stale_image_that_claims_to_be_this_lab_is_no_success(image, tmp_path):
    """A cache of before, or a hand-made manifest: the step itself has the last word."""
    ours = msgspec.structs.replace(lab_with_content(), used="image")
    run = Run.create(tmp_path / "run", msgspec.structs.replace(a_manifest(a_step()), lab=ours))
    take_snapshot(run.root, ours)
    runner = StepRunner(run, DockerEngine(image), [], Stop())
    runner.execute(run.pending(), [], jobs=1)
    outcome = run.manifest.steps[0].outcome
    assert outcome.status is Status.failed and "did not report which lab it imported" in outcome.reason
    assert log_of(run.root) == "measured by the old lab\n"


@pytest.mark.docker
def test_a_run_that_began_mounted_goes_on_mounted_under_an_installed_lab_of_one_content(
    image, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    flag = "import os, lab; os.path.exists('/out/again') or exit(1)"
    with pytest.raises(StepFailed):
        drive(an_experiment(out, a_step(), a_step("s1", ("python", "-c", flag))))
    (out / "again").touch()
    ours = msgspec.structs.replace(lab_with_content(), origin="installed")
    monkeypatch.setattr("lab.core.provenance.lab_with_content", lambda: ours)
    resume(out, Options(analysis="none", quiet=True))
    assert [record.lab_sha256 for record in Run.open(out).manifest.steps] == [ours.sha256] * 2
