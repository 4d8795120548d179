"""Images really built, for the tests that run in them: from this tree, on a base made of Debian packages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from lab.images import build as imagebuild
from lab.images.build import Built
from lab.images.tree import ROOT

BASE = "local/debian-python:bookworm"


@pytest.fixture(scope="session")
def debian_base() -> str:
    subprocess.run([ROOT / "scripts/base-image.sh"], check=True, capture_output=True, timeout=900)
    return BASE


@pytest.fixture(scope="session")
def cpu_images(debian_base: str) -> Iterator[dict[str, Built]]:
    """lab/cpu and lab/cpu-torch as this tree makes them: minutes the first time, then seconds."""
    built = imagebuild.build(["cpu"], base=debian_base, network="host", say=print)
    yield {image.name: image for image in built}
