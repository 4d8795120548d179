"""The forge's workflow does what the tree says: images, Pythons, pinned actions, least permissions."""

from __future__ import annotations

import re

import pytest
import yaml
from click.testing import CliRunner

from lab.cli.main import cli
from lab.images.targets import targets
from tests.conftest import ROOT

TEXT = (ROOT / ".github/workflows/ci.yml").read_text()
FLOW = yaml.safe_load(TEXT)
JOBS = FLOW["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]
PROJECT = (ROOT / "pyproject.toml").read_text()


def test_every_image_is_built_tried_and_published():
    for job in ("images", "publish"):
        assert JOBS[job]["strategy"]["matrix"]["image"] == [target.name for target in targets()]
    tried = " ".join(step.get("run", "") for step in JOBS["images"]["steps"])
    assert "lab images check" in tried and "lab images smoke" in tried and "--stand-in" in tried


def test_the_tests_run_on_every_python_from_the_floor_on():
    versions = JOBS["test"]["strategy"]["matrix"]["python"]
    floor = re.search(r'requires-python = ">=([\d.]+)"', PROJECT)
    assert floor and versions[0] == floor[1]
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert versions == named, "the classifiers name other Pythons than are tested"
    minors = [int(version.split(".")[1]) for version in versions]
    assert minors == list(range(minors[0], minors[-1] + 1)) and minors[-1] >= 13


def test_actions_are_pinned_by_commit_and_say_their_version():
    used = re.findall(r"uses: (\S+)(.*)", TEXT)
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
    given = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}
    assert given == {"publish": {"contents": "read", "packages": "write"}, "release": {"contents": "write"}}
    assert "pull_request_target" not in TEXT and "write-all" not in TEXT


def test_only_a_version_tag_publishes_and_only_after_everything_else():
    for name in ("publish", "release"):
        assert JOBS[name]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert set(JOBS["publish"]["needs"]) == {"lint", "test", "audit", "images"}
    pushes = [(name, step) for name, step in STEPS if step.get("with", {}).get("push")]
    assert [name for name, _ in pushes] == ["publish"]
    assert pushes[0][1]["with"]["provenance"] == "mode=max" and pushes[0][1]["with"]["sbom"] is True


def test_no_credential_stays_in_a_checkout_and_no_expression_in_a_shell():
    for name, step in STEPS:
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, name
        assert "${{" not in step.get("run", ""), f"{name}: a value from outside would be run as shell"
    secrets = re.findall(r"secrets\.(\w+)", TEXT)
    assert set(secrets) == {"GITHUB_TOKEN"}


def test_every_job_ends_some_time():
    assert all(job.get("timeout-minutes") for job in JOBS.values())


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
    assert "env" not in FLOW and not any("env" in JOBS[job] for job in ("images", "publish"))
    builds = [step for _, step in STEPS if "bake-action" in step.get("uses", "")]
    assert len(builds) == 2 and not any("env" in step for step in builds)
