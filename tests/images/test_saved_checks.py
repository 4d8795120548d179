"""The result of a check is kept for its image, and for no other."""

from __future__ import annotations

from functools import partial

import msgspec

from lab.images.saved_checks import load_check, looked_once, save_check
from tests.images.examples import CONTENTS


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
