"""Where the numbers of a page come from."""

from __future__ import annotations

from pathlib import Path

from lab.core.manifest import Kind
from lab.report.provenance import provenance
from tests.core.test_manifest import a_manifest


def test_a_measured_run_shows_its_host():
    groups = provenance(Path("run"), a_manifest())
    assert groups["Host"] == {"name": "h"} and "played back from" not in groups["Run"]


def test_a_replay_does_not_pass_this_machine_off_as_the_one_that_was_measured():
    manifest = a_manifest()
    manifest.kind, manifest.container, manifest.env = Kind.replayed, {"recording": "/r"}, {"NCCL_X": "1"}
    groups = provenance(Path("run"), manifest)
    assert groups["Run"]["played back from"] == "/r"
    assert not {"Host", "Environment"} & groups.keys()
    assert groups["Host (of the machine that played it back)"] == {"name": "h"}
