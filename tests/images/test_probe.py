"""The probe prints what lab reads."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec

from lab.core.provenance import lab_with_content
from lab.images import spec as images
from lab.images.probe import PROBE, Contents, probe_argv, tools_of

CUDA, PASCAL, CPU, ROCM = (images.load(name) for name in ("cuda", "pascal", "cpu", "rocm70"))


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
    assert {"nsys", "nvdisasm", "gcc"} <= set(tools_of(CUDA)) and tools_of(CPU) == []
