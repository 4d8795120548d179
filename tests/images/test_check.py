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
