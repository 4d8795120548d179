"""Images really built, for the tests that run in them: from this tree, on a base made of Debian packages.

A user of this machine has images of lab, too: the tests' own have other names (one set per checkout) and the
label lab.test=1. They are described by a folder of images that LAB_IMAGES names, so lab itself finds them.
`python -m tests.built` builds them before the tests, and with --folder prints that folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.core.files import write_atomic
from lab.images import build as imagebuild
from lab.images.build import Built
from lab.images.compare import TEST_LABEL
from lab.images.targets import ROOT

BASE = "local/debian-python:bookworm"
FOLDER = ROOT / "build/test-images"
TESTS = "localhost/lab-test-"
# Of this checkout, so that two of them on one engine do not take each other's images away.
REPOSITORY = f"{TESTS}{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"


def images_folder() -> Path:
    """The tests' images as data: those of images/ under other names."""
    for source in sorted(ROOT.glob("images/*/*")):
        path = FOLDER / source.parent.name / source.name
        text = source.read_text()
        if source.name == "image.toml":
            text = text.replace('"localhost/lab/', f'"{REPOSITORY}/')
            label = f'labels = {{ "{TEST_LABEL}" = "1" }}\n'
            if "[build]" not in text:
                text += "\n[build]\n"
            text = text.replace("[build]\n", f"[build]\n{label}")
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text)
    return FOLDER


@contextlib.contextmanager
def own_image_names() -> Iterator[None]:
    """Inside, the names of images mean the tests' own, in processes that are started here, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_IMAGES", str(images_folder()))
        yield


def build_test_images() -> dict[str, Built]:
    """lab/cpu and lab/cpu-torch as this tree makes them: minutes the first time, then seconds."""
    with own_image_names():
        built = imagebuild.build(["cpu"], base=BASE, say=print)
        return {image.name: image for image in built}


@pytest.fixture(scope="session")
def debian_base() -> str:
    subprocess.run([ROOT / "scripts/base-image.sh"], check=True, capture_output=True, timeout=900)
    return BASE


@pytest.fixture(scope="session")
def cpu_images(debian_base: str) -> dict[str, Built]:
    return build_test_images()


@pytest.fixture(autouse=True)
def names_mean_the_tests_images(request: pytest.FixtureRequest, no_gpu_masks: None) -> Iterator[None]:
    """A test that uses `cpu_images`, itself or by another fixture, means them by the images' names."""
    with own_image_names() if "cpu_images" in request.fixturenames else contextlib.nullcontext():
        yield


@pytest.fixture
def own_names(no_gpu_masks: None) -> Iterator[None]:
    """For tests of images that are here already, built by .ci/run."""
    with own_image_names():
        yield


if __name__ == "__main__":
    if sys.argv[1:] == ["--folder"]:
        print(images_folder())
    else:
        build_test_images()
