"""One tree gives one wheel."""

from __future__ import annotations

from lab.images.wheel import DIST, make_wheel
from tests.conftest import ROOT
from tests.images.tree import copy_tree


def test_the_same_tree_gives_the_same_wheel_wherever_it_lies(tmp_path):
    copy_tree(ROOT, tmp_path / "a")
    copy_tree(tmp_path / "a", tmp_path / "elsewhere" / "b")
    wheels = [make_wheel(tree, print) for tree in (tmp_path / "a", tmp_path / "elsewhere" / "b")]
    assert wheels[0] == wheels[1]
    sums = (tmp_path / "a" / DIST / "SHA256SUMS").read_text()
    assert sums == f"{wheels[0].sha256}  {wheels[0].name}\n"
