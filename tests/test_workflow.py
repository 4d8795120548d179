"""The forge's workflow does what the tree says: images, Pythons, pinned actions, least permissions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from lab.cli.main import cli
from lab.images.targets import targets
from tests.conftest import ROOT

FOLDER = ROOT / ".github/workflows"
TEXT = "\n".join(path.read_text() for path in sorted(FOLDER.glob("*.yml")))
FLOW = yaml.safe_load((FOLDER / "ci.yml").read_text())
IMAGE = yaml.safe_load((FOLDER / "image.yml").read_text())  # what ci.yml calls once per image
JOBS = FLOW["jobs"]
CALLS = {name: job for name, job in JOBS.items() if job.get("uses") == "./.github/workflows/image.yml"}
ALL_JOBS = {**{name: job for name, job in JOBS.items() if name not in CALLS}, **IMAGE["jobs"]}
STEPS = [(name, step) for name, job in ALL_JOBS.items() for step in job["steps"]]
PROJECT = (ROOT / "pyproject.toml").read_text()


def test_every_image_is_built_tried_and_published():
    names = [target.name for target in targets()]
    nightly = [JOBS["cuda"]["with"]["image"], JOBS["rocm70"]["with"]["image"]]
    assert sorted([*JOBS["images"]["strategy"]["matrix"]["image"], *nightly]) == names
    published = [*JOBS["publish"]["strategy"]["matrix"]["image"], JOBS["publish-rocm70"]["with"]["image"]]
    assert published == names
    runs = [step.get("run", "") for step in IMAGE["jobs"]["image"]["steps"]]
    pushed = next(i for i, step in enumerate(IMAGE["jobs"]["image"]["steps"]) if step.get("id") == "push")
    tried = " ".join(runs[:pushed])
    assert "lab images check" in tried and "lab images smoke" in tried and "--stand-in" in tried


def test_a_tag_builds_every_image_once_and_large_ones_are_built_at_night():
    assert JOBS["images"]["if"] == "${{ !startsWith(github.ref, 'refs/tags/v') }}"
    for name in ("cuda", "rocm70"):
        assert "github.event_name == 'schedule'" in JOBS[name]["if"] and "refs/tags" not in JOBS[name]["if"]
    (load,) = [step["with"] for _, step in STEPS if step.get("with", {}).get("load")]
    assert "cache-from" in load["set"] and "!inputs.push" in load["set"]


def test_an_image_too_large_for_a_hosted_runner_is_built_only_where_a_larger_one_is_named():
    for name in ("rocm70", "publish-rocm70"):
        job = JOBS[name]
        assert "vars.LAB_LARGE_RUNNER != ''" in job["if"] and "LAB_LARGE_RUNNER" in job["with"]["runner"]
    assert not any("rocm70" in str(CALLS[name].get("strategy")) for name in CALLS)
    assert "rocm70" not in JOBS["publish"]["needs"], "a job that was skipped would stop every release"


def test_the_tests_that_need_an_engine_run_in_a_job_that_has_one():
    runs = " ".join(step.get("run", "") for step in JOBS["engine"]["steps"])
    assert "-m docker" in runs and "nvidia-container-runtime-hook" in runs and "base-image.sh" in runs


def test_images_are_built_on_bases_by_digest_and_the_release_names_them_by_digest():
    runs = " ".join(step.get("run", "") for _, step in STEPS)
    assert "--resolve-base" in runs and "containerimage.digest" in runs and "images.json" in runs


def test_the_workflows_pass_the_linter_for_workflows():
    program = shutil.which("zizmor") or shutil.which("zizmor", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("zizmor is not here: pip install -e '.[dev]'")
    config = ROOT / ".github/zizmor.yml"
    argv = [program, "--offline", "--quiet", "--config", config, FOLDER]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_tests_run_on_one_python_and_those_without_torch_on_every_other_from_the_floor_on():
    (whole,) = (
        step["with"]["python-version"]
        for step in JOBS["test"]["steps"]
        if "with" in step and "python-version" in step["with"]
    )
    others = JOBS["smoke"]["strategy"]["matrix"]["python"]
    assert whole not in others
    versions = sorted([whole, *others], key=lambda version: int(version.split(".")[1]))
    floor = re.search(r'requires-python = ">=([\d.]+)"', PROJECT)
    assert floor and versions[0] == floor[1]
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert versions == named, "the classifiers name other Pythons than are tested"
    minors = [int(version.split(".")[1]) for version in versions]
    assert minors == list(range(minors[0], minors[-1] + 1)) and minors[-1] >= 13


def test_actions_are_pinned_by_commit_and_say_their_version():
    used = re.findall(r"uses: (?!\./)(\S+)(.*)", TEXT)
    assert used
    for action, behind in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), f"{action} can be moved"
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", behind), f"{action} does not say its version"
    commits = {}
    for action, _ in used:
        name, commit = action.split("@")
        assert commits.setdefault(name, commit) == commit, f"{name} in two versions"


def test_a_job_may_write_only_what_it_publishes():
    assert FLOW["permissions"] == {"contents": "read"}
    assert "permissions" not in IMAGE and "permissions" not in IMAGE["jobs"]["image"], "its caller's"
    given = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}
    read, push = {"contents": "read"}, {"contents": "read", "packages": "write"}
    assert given == {
        "images": read,
        "cuda": read,
        "rocm70": read,
        "publish": push,
        "publish-rocm70": push,
        "release": {"contents": "write"},
    }
    assert "pull_request_target" not in TEXT and "write-all" not in TEXT


def test_only_a_version_tag_publishes_and_only_after_everything_else():
    for name in ("publish", "publish-rocm70", "release"):
        assert JOBS[name]["if"].split(" && ")[0] == "startsWith(github.ref, 'refs/tags/v')"
    for name in ("publish", "publish-rocm70"):
        assert set(JOBS[name]["needs"]) == {"lint", "test", "smoke", "engine", "docs", "audit"}
    assert [name for name, job in CALLS.items() if job["with"].get("push")] == ["publish", "publish-rocm70"]
    (push,) = [step for _, step in STEPS if step.get("with", {}).get("push")]
    assert push["with"]["provenance"] == "mode=max" and push["with"]["sbom"] is True
    logins = [step for _, step in STEPS if step.get("uses", "").startswith("docker/login-action@")]
    assert all(step["if"] == "inputs.push" for step in [push, *logins])


def test_no_credential_stays_in_a_checkout_and_no_expression_in_a_shell():
    for name, step in STEPS:
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, name
        assert "${{" not in step.get("run", ""), f"{name}: a value from outside would be run as shell"
    secrets = re.findall(r"secrets\.(\w+)", TEXT)
    assert set(secrets) == {"GITHUB_TOKEN"}


def test_every_job_ends_some_time():
    assert all(job.get("timeout-minutes") for job in ALL_JOBS.values())


def test_what_jobs_call_is_there():
    for script in re.findall(r"scripts/[\w.-]+", TEXT):
        assert (ROOT / script).is_file()
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"run: make ([a-z-]+)", TEXT)) <= made


@pytest.mark.parametrize("command", sorted(set(re.findall(r"lab images (\w+)", TEXT))))
def test_commands_of_lab_that_jobs_call_are_there(command):
    assert CliRunner().invoke(cli, ["images", command, "--help"]).exit_code == 0


def test_the_index_of_cpu_builds_never_reaches_the_build_of_an_image():
    """Its torch has the CUDA one's version: a lock's hashes refuse it, a build without hashes takes it."""
    assert "env" not in FLOW and "env" not in IMAGE and set(IMAGE["jobs"]["image"]["env"]) == {"IMAGE"}
    builds = [step for _, step in STEPS if "bake-action" in step.get("uses", "")]
    assert len(builds) == 2 and not any("env" in step for step in builds)


# Each job, step by step, with stand-ins for the programs that it calls

# make, lab, gh, docker and each Python note what they were called with; a Python makes environments of them.
PROGRAM = """#!/bin/sh
name=$(basename "$0")
case "$name $1 $2" in
  python3.*" -c "*) echo "${name#python}"; exit ;;
  python3.*" -m venv") mkdir -p "$3/bin"; cp "$PROGRAMS/lab" "$3/bin"; cp "$0" "$3/bin/python"; exit ;;
esac
echo "$name $*" >>"$CALLED"
case "$name $1 $2" in
  "python scripts/images.py prepare")
    mkdir -p build/images/dist; touch build/images/dist/lab.whl; echo LAB_WHEEL=a=b ;;
  "lab images check") echo "wheel $LAB_WHEEL" >>"$CALLED" ;;
  "docker image inspect") case "$*" in *Id*) echo sha256:12ab ;; *) exit 1 ;; esac ;;
  "make site ") mkdir -p site ;;
  "gh release create") cp build/images/dist/images.json "$RELEASED" ;;
esac
"""


@pytest.fixture
def workflow(tmp_path, monkeypatch):
    """-> a function: runs jobs on a tree of stand-ins -> exit code, calls, output."""
    if shutil.which("jq") is None or shutil.which("bash") is None:
        pytest.skip("bash and jq are on every runner, and not here")
    tree, programs = tmp_path / "tree", tmp_path / "programs"
    for folder in (tree / ".venv/bin", tree / "scripts", programs):
        folder.mkdir(parents=True)
    names = ("make", "lab", "gh", "docker", "python3.10", "python3.11", "python3.12")
    places = [programs / name for name in names]
    scripts = ("base-image", "podman-user", "images-here")
    places += [tree / ".venv/bin/python", *(tree / f"scripts/{name}.sh" for name in scripts)]
    for place in places:
        place.write_text(PROGRAM)
        place.chmod(0o755)
    called = tmp_path / "called"
    paths = {"CALLED": called, "PROGRAMS": programs, "RELEASED": tmp_path / "images.json"}
    env = {**os.environ, "PATH": f"{programs}:/usr/bin:/bin", **{name: str(paths[name]) for name in paths}}

    def run(*words):
        called.write_text("")
        argv = [sys.executable, ROOT / "scripts/workflow.py", "--tree", tree, *words]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        return done.returncode, called.read_text().splitlines(), done.stdout + done.stderr

    return run


CALLS_OF = {
    "lint": ["make lint"],
    "test": ["make test PYTEST=-n 4 --dist loadfile -m 'not docker'"],
    "smoke": ["make test PYTEST=-n 4 --dist loadfile -m 'not torch and not docker'"],
    "engine": ["make test PYTEST=-n 2 --dist loadfile -m docker"],
    "docs": ["make site"],
    "audit": ["python -m pip install --quiet pip-audit", "python scripts/audit.py"],
    "image": [
        "python -m pip install --quiet -e .[host]",
        "python scripts/images.py prepare cpu --resolve-base",
        "images-here.sh cpu",
        "lab images check cpu",
        "wheel a=b",
        "lab images smoke cpu --stand-in",
    ],
}


@pytest.mark.parametrize("job", CALLS_OF)
def test_a_job_runs_its_steps_to_the_end(workflow, job):
    """What a step puts into GITHUB_ENV reaches the later ones; root's own steps need root."""
    code, called, text = workflow(job)
    assert code == 0 and f"✓ {job}" in text, text
    of_root = ("base-image.sh", "podman-user.sh", "python -m pytest")
    assert [call for call in called if not call.startswith(of_root)] == CALLS_OF[job]
    asked = {one for one in of_root if any(call.startswith(one) for call in called)}
    assert asked == (set(of_root) if job == "engine" and os.getuid() == 0 else set())


def test_what_is_pushed_is_named_by_digest_in_the_release(workflow, tmp_path):
    code, called, text = workflow(
        "image", "release", "--set", "image=cuda", "--set", "push=1", "--set", "tag=v1.2.3"
    )
    files = " ".join(f"build/images/dist/{name}" for name in ("SHA256SUMS", "images.json", "lab.whl"))
    assert code == 0 and f"gh release create v1.2.3 {files}" in " ".join(called), text
    released = json.loads((tmp_path / "images.json").read_text())
    assert released == {"cuda": "ghcr.io/owner/lab/cuda@sha256:12ab"}
    assert "not done to this machine: sudo rm -rf /usr/share/dotnet" in text


def test_a_step_that_fails_ends_its_job(workflow, tmp_path):
    (tmp_path / "programs/make").write_text("#!/bin/sh\nexit 2\n")
    code, _, text = workflow("engine")
    assert code == 1 and "✗ engine" in text and "The tests that need root" not in text
