"""The wheels of this host's pip: asked for once, and never a GPU build."""

from __future__ import annotations

import zipfile
from pathlib import Path

from lab.images import wheel as wheels
from lab.images.targets import targets
from lab.images.wheel import download_argv, fill_wheelhouse


def wheel_with(path, *requires):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "torch-2.dist-info/METADATA",
            "\n".join(["Name: torch", *(f"Requires-Dist: {r}" for r in requires)]),
        )


def wheelhouse(monkeypatch, tmp_path, *requires):
    calls = []

    def stream(argv, **_):
        calls.append(argv)
        wheel_with(Path(argv[argv.index("--dest") + 1]) / "torch-2-cp311-none-any.whl", *requires)
        return 0, []

    monkeypatch.setattr(wheels, "stream", stream)
    target = next(t for t in targets() if t.name == "cpu-torch")
    return calls, lambda python: fill_wheelhouse(target, python, tmp_path, lambda _: None)


def test_pip_is_asked_once_for_each_python_of_a_base(monkeypatch, tmp_path):
    calls, fill = wheelhouse(monkeypatch, tmp_path, "filelock")
    for python in ("3.11", "3.11", "3.12"):
        fill(python)
    assert [argv[argv.index("--python-version") + 1] for argv in calls] == ["3.11", "3.12"]
    assert all("torch==2.13.0" in argv and "--no-deps" in argv for argv in calls)


def test_alpine_asks_for_wheels_of_its_own_c_library(tmp_path):
    argv = download_argv(["msgspec"], "3.12", tmp_path, machine="x86_64", libc="")
    platforms = [argv[place + 1] for place, word in enumerate(argv) if word == "--platform"]
    assert platforms == ["musllinux_1_2_x86_64", "musllinux_1_1_x86_64"]
