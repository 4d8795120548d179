"""The sections that all Dockerfiles share come from one place, and an edit of one by hand is noticed."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from lab.errors import ConfigError
from lab.images.compare import differences
from lab.images.spec import load
from lab.images.targets import targets, targets_of
from scripts.dockerfiles import SECTIONS, render, shared_sections
from tests.conftest import ROOT
from tests.images.made import CONTENTS, LOCK

TARGETS = targets()
ALL = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)


@ALL
def test_every_dockerfile_holds_every_shared_section_as_it_is(target):
    assert shared_sections(target, ROOT) == [], "make dockerfiles"


@ALL
@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_edited_by_hand_or_left_out_is_found_and_written_anew(target, name, tmp_path):
    good = (ROOT / target.dockerfile).read_text()
    path = tmp_path / target.dockerfile
    path.parent.mkdir()
    path.write_text(good.replace(f"# end of {name}\n", f"# an edit\n# end of {name}\n"))
    assert shared_sections(target, tmp_path) == ["a shared section was edited by hand: make dockerfiles"]
    assert render(target, path.read_text()) == good
    path.write_text(good.replace(f"# shared: {name}\n", ""))
    assert f"has no shared section {name}" in shared_sections(target, tmp_path)


def test_an_unknown_section_is_an_error_that_names_the_known_ones():
    with pytest.raises(ConfigError, match="'lables'") as caught:
        render(TARGETS[0], "# shared: lables\n# end of lables\n")
    assert "labels" in str(caught.value)


def test_a_private_name_of_an_image_changes_no_dockerfile():
    mine = msgspec.structs.replace(TARGETS[0], ref="registry.example.org/me/cpu")
    assert shared_sections(mine, ROOT) == []


def test_the_cuda_image_installs_nsys_by_default_signed_and_can_leave_it_out():
    text = (ROOT / "docker/cuda.Dockerfile").read_text()
    assert "ARG NSYS_PACKAGE=nsight-systems-cli" in text and "signed-by=" in text
    assert "unauthenticated" not in text and "trusted=yes" not in text
    assert "LicenseRef-NVIDIA" in text and "license agreement" in text.lower()


def test_nsys_left_out_on_purpose_is_a_note_and_lost_otherwise_is_a_failure():
    image = load("cuda")
    (target,) = targets_of(image)
    contents = msgspec.structs.replace(CONTENTS, tools={**CONTENTS.tools, "nsys": None})
    labels = {"org.opencontainers.image.base.name": target.base, "lab.wheel.sha256": contents.wheel}
    problems, notes = differences(image, target, {**labels, "lab.nsys": ""}, contents, LOCK)
    assert not any("nsys" in one for one in problems) and "without Nsight" in " ".join(notes)
    for lost in (labels, {**labels, "lab.nsys": "nsight-systems-cli"}):
        assert "no nsys" in differences(image, target, lost, contents, LOCK)[0]


def test_a_shared_section_survives_its_copy(tmp_path):
    shutil.copytree(ROOT / "docker", tmp_path / "docker")
    assert all(shared_sections(target, tmp_path) == [] for target in TARGETS)
