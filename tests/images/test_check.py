"""What `lab images check` runs besides lab's own rules."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from lab.core.provenance import lab_with_content
from lab.images import check as imagecheck
from lab.images.targets import targets
from tests.conftest import ROOT


def test_scripts_are_sound_shell():
    for script in (ROOT / "scripts").glob("*.sh"):
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not here: only the syntax was checked")
    assert subprocess.run(["shellcheck", *(ROOT / "scripts").glob("*.sh")], check=False).returncode == 0


@pytest.mark.parametrize("by_podman", [False, True])
def test_an_image_is_described_on_one_line_or_by_a_list_on_many(by_podman):
    """So podman's remote program prints `{{json .}}`; a probe's answer follows what an image prints."""
    one = {"Id": "12", "Config": {"Labels": None}}
    text = json.dumps([one], indent=4) if by_podman else json.dumps(one)
    assert imagecheck._last_json(f"{text}\n") == one
    assert imagecheck._last_json('hello\n{"python": "3.12"}\n') == {"python": "3.12"}


@pytest.mark.parametrize("said", ["", "nothing", "[]", "null", "[1]", "[{}, {}]"])
def test_an_answer_without_an_object_is_a_row_that_names_the_command(said):
    assert imagecheck.docker_json(["echo", said]).startswith(f"echo {said}: ")


def test_the_reason_of_a_failure_is_the_engines_and_not_where_the_help_is():
    text = "docker: no such program\n\nRun 'docker run --help' for more information"
    argv = ["sh", "-c", 'echo "$0" >&2; exit 125', text]
    assert imagecheck.docker_json(argv) == "docker: no such program"


def test_what_is_kept_of_a_check_is_found_by_runs_whichever_program_described_the_image(monkeypatch):
    """Runs ask the engine, which says `sha256:` before the id; podman's program does not."""
    kept = []
    contents = {"python": "3.12", "lab": "0", "wheel": "w", "command": None, "torch": False}
    contents |= {"uid": 1234, "root_writable": False, "lab_sha256": lab_with_content().sha256}
    answers = [{"Id": "ab12", "Config": {}}, contents]
    monkeypatch.setattr(imagecheck, "engine_cli", lambda: ["podman"])
    monkeypatch.setattr(imagecheck, "docker_json", lambda _: answers.pop(0))
    monkeypatch.setattr(imagecheck, "differences", lambda *_: ([], []))
    monkeypatch.setattr(imagecheck, "save_check", lambda image, *_, **__: kept.append(image))
    target = targets(["cpu"])[0]
    assert imagecheck._check_built(target, {f"{target.ref}:latest": "x"}).state == "ok"
    assert kept == ["sha256:ab12"]
