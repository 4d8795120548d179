"""The audit of the locks: open findings fail it, accepted ones have a reason, and no lookup is no pass."""

from __future__ import annotations

import json

import pytest

from tests.command import script
from tests.conftest import ROOT

audit = script("audit")

OLD = {
    "name": "torch",
    "version": "1.12.1",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1", "GHSA-1"], "fix_versions": ["2.6.0"]}],
}
CLEAN = {"name": "click", "version": "8.5.1", "vulns": []}


@pytest.fixture
def audited(tmp_path, monkeypatch, capsys):
    """-> a function: what pip-audit reports and what is accepted -> whether it passes, and what it says."""

    def run(report, ignored="", code=1):
        folder = tmp_path / "images/x"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "audit.ignore").write_text(ignored)
        lock = folder / "requirements.lock"
        lock.write_text("")
        program = tmp_path / "pip-audit"
        (tmp_path / "report").write_text(report if isinstance(report, str) else json.dumps(report))
        program.write_text(f"#!/bin/sh\ncat {tmp_path}/report\necho broken >&2\nexit {code}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(audit, "ROOT", tmp_path)
        return audit.audit(lock), capsys.readouterr().out

    return run


def test_a_finding_that_nobody_accepted_fails_and_names_the_cure(audited):
    passed, text = audited({"dependencies": [CLEAN, OLD]})
    assert not passed and "torch==1.12.1 PYSEC-1 OPEN, fixed in 2.6.0" in text


@pytest.mark.parametrize("what", ["PYSEC-1", "ghsa-1", "CVE-1", "torch==1.12.1"])
def test_an_accepted_finding_passes_and_is_still_printed_with_its_reason(audited, what):
    passed, text = audited({"dependencies": [OLD]}, f"# a comment\n\n{what} # no newer one runs here\n")
    assert passed and "accepted: no newer one runs here" in text


@pytest.mark.parametrize("what", ["torch==1.12.2", "torch", "PYSEC-2"])
def test_accepting_another_version_or_id_accepts_nothing(audited, what):
    passed, text = audited({"dependencies": [OLD]}, f"{what} # why\n")
    assert not passed and f"accepted and not found: {what.lower()}" in text


def test_a_line_without_a_reason_is_an_error_with_its_place(audited):
    with pytest.raises(ValueError, match=r"audit\.ignore:1"):
        audited({"dependencies": []}, "PYSEC-1\n")


def test_a_package_that_was_not_looked_up_is_not_clean(audited):
    passed, text = audited({"dependencies": [{"name": "click", "skip_reason": "not on PyPI"}]}, code=0)
    assert not passed and "NOT LOOKED UP click: not on PyPI" in text


def test_what_could_not_be_looked_up_is_no_reason_to_accept_less(audited):
    unknown = {"dependencies": [{"name": "torch", "skip_reason": "not on PyPI"}]}
    passed, text = audited(unknown, "torch==1.12.1 # why\n", code=0)
    assert not passed and "accepted and not found" not in text


@pytest.mark.parametrize("report", ["", "[]", "{}", "not json"])
def test_no_report_is_not_clean(audited, report):
    passed, text = audited(report, code=0)
    assert not passed and "no report" in text and "broken" in text


def test_a_clean_lock_passes(audited):
    assert audited({"dependencies": [CLEAN]}, code=0)[0]


def test_what_the_images_accept_is_in_their_locks():
    ignored = list(ROOT.glob("images/*/audit.ignore"))
    assert ignored
    for path in ignored:
        locks = "".join(lock.read_text() for lock in path.parent.glob("*.lock"))
        for what in audit.accepted(path):
            assert "==" not in what or f"\n{what} " in locks, f"{path}: {what} is no longer installed"
