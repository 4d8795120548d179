"""One tree gives one wheel, with the compiled scanner of tensors where a C compiler is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import NamedTuple

import pytest

from lab.core.content import content_sha256
from lab.images.wheel import DIST, Wheel, make_wheel
from lab.native import C
from tests.command import script
from tests.conftest import ROOT
from tests.images.made import copy_tree

HAS_C = any(shutil.which(name) for name in C.names)
COUNTS = Path("lab/rooms/nan/watch/counts.c")
STATE = "from lab.rooms.nan.watch.native import library_state; print(library_state())"


class Built(NamedTuple):
    """A wheel, where it lies, what was said when it was made, and the folder into which pip installed it."""

    wheel: Wheel
    tree: Path
    said: list[str]
    site: Path


@pytest.fixture(scope="module")
def native(tmp_path_factory) -> Built:
    if not HAS_C:
        pytest.skip("no C compiler here")
    return built(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def pure(tmp_path_factory) -> Built:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "no-such-compiler")
        return built(tmp_path_factory.mktemp("pure"))


def built(folder: Path) -> Built:
    copy_tree(ROOT, folder / "tree")
    said: list[str] = []
    wheel = make_wheel(folder / "tree", said.append)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    made = folder / "tree" / DIST / wheel.name
    subprocess.run([*pip, "--no-index", "--target", str(folder / "site"), str(made)], check=True)
    return Built(wheel, folder / "tree", said, folder / "site")


def test_the_same_tree_gives_the_same_wheel_wherever_it_lies(native, tmp_path):
    copy_tree(native.tree, tmp_path / "elsewhere" / "b")
    assert make_wheel(tmp_path / "elsewhere" / "b", print) == native.wheel
    sums = (native.tree / DIST / "SHA256SUMS").read_text()
    assert sums == f"{native.wheel.sha256}  {native.wheel.name}\n"


def test_with_a_compiler_the_wheel_is_for_this_platform_and_any_python(native):
    assert re.search(r"-py3-none-(manylinux_2_\d+|linux)_\w+\.whl$", native.wheel.name)
    assert not any("compiled scanner of tensors" in line for line in native.said)
    libraries = {place.name: place.read_bytes() for place in (native.site / "lab" / "_native").iterdir()}
    assert libraries.keys() == {C.file_name(source) for source in native.site.glob("lab/**/*.c")}
    assert C.file_name(native.site / COUNTS) in libraries
    assert not any(str(native.tree).encode() in library for library in libraries.values())


def test_without_a_compiler_it_is_the_pure_one_and_says_so(pure):
    assert pure.wheel.name.endswith("-py3-none-any.whl") and not (pure.site / "lab" / "_native").exists()
    assert "without the compiled scanner of tensors" in pure.said[-1]


def test_both_are_the_same_lab_and_say_which_form_they_use(native, pure, tmp_path):
    assert content_sha256(native.site / "lab") == content_sha256(pure.site / "lab")
    assert content_sha256(pure.site / "lab") == content_sha256(pure.tree / "lab"), "and the checkout's"
    assert (pure.site / "lab/_images/cpu/image.toml").is_file()
    states = [state_of(built.site, tmp_path) for built in (native, pure)]
    assert states == ["native, from the wheel", "plain: no C compiler here"]


def test_a_library_of_another_source_is_not_used(native, tmp_path):
    """As when files are copied over an installed lab: what runs then is what the source says."""
    shutil.copytree(native.site, tmp_path / "site")
    with (tmp_path / "site" / COUNTS).open("a") as source:
        source.write("/* edited */\n")
    state = state_of(tmp_path / "site", tmp_path)
    assert state.startswith("plain: ") and "is for another machine or version" in state


def state_of(site: Path, home: Path) -> str:
    """Which form the lab in `site` uses on a machine without a compiler."""
    own = {"PYTHONPATH": f"{site}:{ROOT}", "XDG_CACHE_HOME": str(home / "cache"), "CC": "no-such-compiler"}
    command = [sys.executable, "-c", STATE]
    done = subprocess.run(
        command, env={**os.environ, **own}, cwd="/", capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def hook(monkeypatch):
    """The hook's module, without the build backend that only a build has."""
    backend = types.ModuleType("hatchling.builders.hooks.plugin.interface")
    backend.BuildHookInterface = object
    monkeypatch.setitem(sys.modules, backend.__name__, backend)
    return script("hatch_build")


@pytest.mark.parametrize(
    "words, tag",
    [
        (b"\0libc.so.6\0memcpy\0GLIBC_2.2.5\0GLIBC_2.14\0", "manylinux_2_17_x86_64"),
        (b"\0libc.so.6\0GLIBC_2.2.5\0GLIBC_2.34\0", "manylinux_2_34_x86_64"),
        (b"\0libc.so.6\0libgomp.so.1\0GLIBC_2.2.5\0", "linux_x86_64"),
        (b"\0libc.musl-x86_64.so.1\0memcpy\0", "linux_x86_64"),
    ],
)
def test_the_tag_promises_no_more_than_the_library_needs(hook, words, tag):
    assert hook.platform_tag(words, "x86_64") == tag


def test_lab_wheel_takes_three_words(hook, monkeypatch):
    monkeypatch.setenv(hook.WANTED, "fast")
    with pytest.raises(ValueError, match="pure or native"):
        hook.CustomBuildHook().initialize("standard", {})
