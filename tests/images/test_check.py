"""What `lab images check` runs besides lab's own rules."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from lab.images import check as imagecheck
from lab.images.targets import targets
from tests.conftest import ROOT


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
def test_hadolint_finds_nothing(target):
    row = imagecheck._hadolint(target, ROOT)
    if row.state == "skipped":
        pytest.skip(row.detail)
    assert row.state == "ok", row.detail


def test_scripts_are_sound_shell():
    for script in (ROOT / "scripts").glob("*.sh"):
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not here: only the syntax was checked")
    assert subprocess.run(["shellcheck", *(ROOT / "scripts").glob("*.sh")], check=False).returncode == 0


def test_a_lab_without_its_source_tree_fails_no_check_of_files_it_does_not_have(tmp_path, monkeypatch):
    """As installed from a wheel."""
    monkeypatch.setattr(imagecheck, "built", dict)
    rows = list(imagecheck.check([], tmp_path))
    assert {row.what for row in rows} == {"image.toml", "as built", "source tree"}
    assert [row for row in rows if row.state == "failed"] == []
    assert [row.detail for row in rows if row.what == "source tree"] == [
        "installed without it: its files are checked in a checkout"
    ]


def test_in_a_source_tree_a_file_that_is_gone_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(imagecheck, "built", dict)
    (tmp_path / "docker").mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    failed = {(row.image, row.what) for row in imagecheck.check([], tmp_path) if row.state == "failed"}
    assert {("cpu", "Dockerfile"), ("cpu", "lock"), ("bake", "file"), ("compose", "file")} <= failed
