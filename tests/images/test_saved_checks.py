"""The result of a check is kept for its image, and for no other."""

from __future__ import annotations

from lab.images import saved_checks
from lab.images.saved_checks import load_check, save_check
from tests.images.examples import CONTENTS


def test_an_answer_is_kept_for_its_image_and_for_no_other(tmp_path):
    kept = save_check("sha256:aa", CONTENTS, ok=True, root=tmp_path)
    assert load_check("sha256:aa", tmp_path) == kept and load_check("sha256:bb", tmp_path) is None
    assert kept.versions == {"torch": "2.10.0", "numpy": "2.5.5"}
    assert kept.tools == ("ncu", "nsys", "nvdisasm")
    saved_checks.saved_path("sha256:aa", root=tmp_path).write_text("{")
    assert load_check("sha256:aa", tmp_path) is None
