"""The probe prints what lab reads; the result of a check is kept for its image, and for no other."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import msgspec

from lab.core.provenance import lab_with_content
from lab.images import spec as images
from lab.images.probe import PROBE, Contents, load_check, looked_once, probe_argv, save_check, tools_of
from tests.images.made import CONTENTS


def test_the_probe_prints_what_seen_reads(tmp_path):
    sums = tmp_path / "SHA256SUMS"
    sums.write_text("abc  lab-0-py3-none-any.whl\n")
    program = PROBE.replace("/usr/share/lab/SHA256SUMS", str(sums)).replace(
        '"/lab-probe"', repr(str(tmp_path / "p"))
    )
    program = program.replace('importlib.util.find_spec("torch") is not None', "False")
    done = subprocess.run(
        [sys.executable, "-c", program, probe_argv([])[2], "sh", "no-such-tool"],
        capture_output=True,
        text=True,
        check=True,
    )
    seen = msgspec.convert(json.loads(done.stdout), Contents)
    assert seen.wheel == "abc" and seen.packages["msgspec"] == msgspec.__version__ and seen.root_writable
    assert (seen.lab_sha256, seen.lab) == (lab_with_content().sha256, lab_with_content().version)
    assert seen.tools["sh"] and seen.tools["no-such-tool"] is None


def test_tools_that_the_image_promises_are_looked_for():
    assert {"nsys", "nvdisasm", "gcc"} <= set(tools_of(images.load("cuda"))) and tools_of(
        images.load("cpu")
    ) == []


def test_an_answer_is_kept_for_its_image_and_for_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = save_check("sha256:aa", CONTENTS, ok=True)
    assert load_check("sha256:aa") == kept and load_check("sha256:bb") is None
    assert kept.versions == {"torch": "2.10.0", "numpy": "2.5.5"}
    assert kept.tools == ("ncu", "nsys", "nvdisasm")
    (path,) = tmp_path.glob("lab/images/*.json")
    path.write_text("{")
    assert load_check("sha256:aa") is None


def test_a_look_inside_is_taken_once_per_content_and_again_where_it_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    looks = iter([CONTENTS, msgspec.structs.replace(CONTENTS, uid=7)])
    look = partial(looked_once, "sha256:aa", "inside.json", type(CONTENTS), lambda: next(looks))
    assert look() == look() == CONTENTS
    (path,) = tmp_path.glob("lab/images/*.json")
    path.write_text("{")
    assert look().uid == 7
