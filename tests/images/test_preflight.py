"""An image that has no code for a GPU, or needs a newer driver, is refused before anything is started."""

from __future__ import annotations

import pytest

from lab.core.gpu import Gpu
from lab.errors import GpuError
from lab.images import spec as images
from lab.images.preflight import refuse_unsuited, suits

CATALOGUE = [images.load(name) for name in images.names()]


def gpu(arch: str | None, driver: str | None = "580.82", vendor: str = "nvidia") -> Gpu:
    return Gpu(vendor=vendor, index=0, uuid="GPU-aa", name="a card", arch=arch, driver=driver)


def refusal(image: str, *gpus: Gpu) -> str:
    with pytest.raises(GpuError) as caught:
        refuse_unsuited(images.load(image), gpus, CATALOGUE)
    return str(caught.value)


@pytest.mark.parametrize(
    "image, card",
    [
        ("cuda", gpu("sm_80")),
        ("cuda", gpu("sm_75")),  # a T4: the lock's torch has code for it
        ("cuda", gpu("sm_89")),  # runs the code for sm_86
        ("cuda", gpu("sm_103")),
        ("cuda", gpu("sm_90", "525.60.13")),
        ("pascal", gpu("sm_61", "440.33")),
        ("pascal", gpu("sm_70")),
        ("pascal", gpu(None, "470.82.01")),  # a driver that does not say the architecture
        ("cuda", gpu("sm_90", None)),
        ("rocm70", gpu("gfx942", "6.14.14", vendor="amd")),
        ("cpu", gpu("sm_20", "300.1")),
    ],
)
def test_what_the_image_is_made_for_passes(image, card):
    refuse_unsuited(images.load(image), [card], CATALOGUE)


@pytest.mark.parametrize(
    "image, card, words",
    [
        ("cuda", gpu("sm_61"), ["no code for a card, which is sm_61", "sm_80", "--image pascal"]),
        ("pascal", gpu("sm_80"), ["no code", "sm_80", "--image cuda"]),
        ("pascal", gpu("sm_120"), ["no code", "--image cuda"]),
        ("rocm70", gpu("gfx1100", vendor="amd"), ["no code", "gfx1100", "no image of lab fits"]),
        ("cuda", gpu("sm_80", "470.82.01"), ["needs driver 525.60.13", "470.82.01", "update the driver"]),
        ("cuda", gpu("sm_70", "525.60.12"), ["no code", "--image pascal"]),
        ("pascal", gpu("sm_61", "396.44"), ["needs driver 440.33", "no image of lab fits"]),
    ],
)
def test_what_it_is_not_made_for_is_refused_with_what_to_use_instead(image, card, words):
    text = refusal(image, card)
    assert all(word in text for word in words), text
    assert "GPU 0 (GPU-aa)" in text


def test_every_gpu_is_looked_at():
    assert "sm_61" in refusal("cuda", gpu("sm_90"), gpu("sm_61"))


def test_an_image_of_another_vendor_is_never_the_cure():
    assert not suits(images.load("rocm70"), gpu(None))
