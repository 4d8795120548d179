"""A name selects an image's targets, or one of them."""

from __future__ import annotations

import pytest

from lab.errors import UsageError
from lab.images.targets import targets


def test_a_name_means_all_that_the_image_needs_or_one_target():
    assert [t.name for t in targets(["cpu"])] == ["cpu", "cpu-torch"]
    assert [t.name for t in targets(["cpu-torch", "cuda"])] == ["cpu-torch", "cuda"]
    with pytest.raises(UsageError, match="unknown image 'gpu'"):
        targets(["cpu", "gpu"])
