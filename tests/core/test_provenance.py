"""What identifies this machine and this lab: values that another machine can be compared with."""

from __future__ import annotations

import io
import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

import lab
from lab.core import provenance
from lab.core.provenance import git, host, lab_identity, lab_with_content


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder from which lab seems to be imported."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").write_text("")
    monkeypatch.setattr(lab, "__file__", str(tmp_path / "lab" / "__init__.py"))
    monkeypatch.setenv("LAB_COMMIT", "a claim that nothing proves")
    return tmp_path


@pytest.fixture
def repository(tree):
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm first"):
        subprocess.run(["git", "-C", str(tree), *words.split()], check=True, capture_output=True)
    return tree


def test_an_installed_lab_names_no_commit_whatever_the_environment_claims(tree):
    found = lab_identity()
    assert (found.version, found.commit, found.dirty) == (lab.__version__, None, None)
    assert found.origin == "installed"


def test_a_checkout_is_known_by_its_commit_and_whether_it_was_changed(repository):
    commit = git(repository, "rev-parse", "HEAD")
    assert commit and re.fullmatch("[0-9a-f]{40}", commit)
    found = lab_identity()
    assert (found.version, found.commit, found.dirty) == (lab.__version__, commit, False)
    (repository / "notes").write_text("untracked files change no code")
    assert lab_identity().dirty is False
    (repository / "lab" / "__init__.py").write_text("changed")
    assert lab_identity().dirty is True


def test_a_checkout_without_history_names_no_commit(tree):
    (tree / ".git").mkdir()
    found = lab_identity()
    assert (found.commit, found.dirty, found.origin) == (None, None, "checkout")


def test_a_source_tree_without_git_is_a_checkout_of_no_commit(tree):
    (tree / "pyproject.toml").write_text("")
    assert lab_identity().origin == "checkout" and lab_identity().commit is None


def test_a_module_that_git_ignores_makes_the_tree_dirty(repository):
    (repository / ".git" / "info" / "exclude").write_text("new.py\n")
    (repository / "lab" / "new.py").write_text("x = 1")
    assert git(repository, "status", "--porcelain") == ""
    assert lab_identity().dirty is True


def test_bytecode_and_hidden_files_leave_a_tree_clean(repository):
    (repository / "lab" / "__pycache__").mkdir()
    (repository / "lab" / "__pycache__" / "x.pyc").write_text("")
    (repository / "lab" / ".x.swp").write_text("")
    assert lab_identity().dirty is False


def test_the_content_of_a_changed_tree_is_another_one(repository):
    before = lab_with_content()
    assert before.sha256 and before.commit == lab_identity().commit
    (repository / "lab" / "__init__.py").write_text("x = 1")
    assert lab_with_content().sha256 != before.sha256


def test_the_history_of_a_folder_above_is_not_that_of_the_tree(repository, monkeypatch):
    inner = repository / "sources" / "lab"
    inner.mkdir(parents=True)
    (inner / "__init__.py").write_text("")
    (inner.parent / ".git").mkdir()  # broken: git goes on to the folder above
    monkeypatch.setattr(lab, "__file__", str(inner / "__init__.py"))
    assert git(inner, "rev-parse", "HEAD") and lab_identity().commit is None


def test_in_a_hook_of_another_repository_the_commit_is_still_this_trees(
    repository, tmp_path_factory, monkeypatch
):
    here, other = lab_identity(), tmp_path_factory.mktemp("other")
    for words in ("init -q", "-c user.name=a -c user.email=a@b commit -q --allow-empty -m other"):
        subprocess.run(["git", "-C", str(other), *words.split()], check=True, capture_output=True)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert lab_identity() == here


def test_a_status_that_git_cannot_tell_is_unknown_and_not_clean(repository, monkeypatch):
    monkeypatch.setattr(
        provenance, "git", lambda folder, word, *_: f"{repository}\nabc" if word == "rev-parse" else None
    )
    found = lab_identity()
    assert (found.commit, found.dirty) == ("abc", None)


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 10)])
def test_without_an_answer_of_git_within_seconds_there_is_none(tmp_path, monkeypatch, error):
    def run(argv, **options):
        assert argv == ["git", "-C", str(tmp_path), "status"] and 0 < options["timeout"] <= 60
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    assert git(tmp_path, "status") is None


def test_a_failing_git_has_no_answer(tmp_path):
    assert git(tmp_path, "no-such-command") is None


def test_the_host_is_described_by_what_the_kernel_says(monkeypatch):
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5} if pid == 0 else {})
    assert host() == {
        "name": os.uname().nodename,
        "os": provenance._os_name(),
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "cpu": provenance._cpu_name(),
        "cpu_count": 3,  # those this process may use
        "mem_bytes": int(memory.split()[1]) * 1024,
        "python": platform.python_version(),
    }


@pytest.mark.parametrize(
    "release, name", [({"PRETTY_NAME": "Debian 12"}, "Debian 12"), ({}, "Plan9"), (OSError(), "Plan9")]
)
def test_the_system_is_named_as_its_release_file_does(monkeypatch, release, name):
    def os_release():
        if isinstance(release, OSError):
            raise release
        return release

    monkeypatch.setattr(platform, "freedesktop_os_release", os_release)
    monkeypatch.setattr(platform, "system", lambda: "Plan9")
    assert provenance._os_name() == name


@pytest.mark.parametrize(
    "cpuinfo, name",
    [
        ("processor\t: 0\nmodel name\t: Xeon: 2 GHz\nmodel name\t: Other\n", "Xeon: 2 GHz"),
        ("processor\t: 0\n", "riscv64"),
        (None, "riscv64"),
    ],
)
def test_the_cpu_is_named_by_its_model_or_its_machine(monkeypatch, cpuinfo, name):
    def opened(path):
        assert path == "/proc/cpuinfo"
        if cpuinfo is None:
            raise FileNotFoundError(path)
        return io.StringIO(cpuinfo)

    monkeypatch.setattr(provenance, "open", opened, raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert provenance._cpu_name() == name
