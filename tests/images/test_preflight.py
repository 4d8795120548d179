"""An image that has no code for a GPU, or needs a newer driver, is refused before anything is started."""

from __future__ import annotations

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.errors import GpuError
from lab.images import spec as images
from lab.images.preflight import refuse_unsuited, satisfies, suits, unsuited

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


# What bases of CUDA 12.8 ask of NVIDIA's toolkit: a CUDA version, or an older driver branch on these brands.
REQUIRE = (
    "cuda>=12.8 brand=unknown,driver>=470,driver<471 brand=tesla,driver>=535,driver<536 "
    "brand=quadro,driver>=550,driver<551"
)


@pytest.mark.parametrize(
    "driver, name, passes",
    [
        ("570.133.07", "NVIDIA GeForce RTX 3090", True),
        ("550.144.03", "NVIDIA GeForce RTX 3090", False),
        ("535.104.05", "NVIDIA H100 PCIe", True),
        ("545.23", "NVIDIA H100 PCIe", False),
        ("535.104.05", "NVIDIA TITAN RTX", False),
        ("not a version", "NVIDIA GeForce RTX 3090", True),
    ],
)
def test_what_a_base_asks_of_the_driver_is_judged_before_the_start(driver, name, passes):
    card = Gpu(vendor="nvidia", index=0, uuid="GPU-aa", name=name, driver=driver, arch="sm_86")
    assert satisfies(REQUIRE, card) is passes
    image = msgspec.structs.replace(images.load("cuda"), require=REQUIRE, env={})
    assert (unsuited(image, card) == "") is passes
    lifted = msgspec.structs.replace(image, env={"NVIDIA_DISABLE_REQUIRE": "1"})
    assert unsuited(lifted, card) == ""
    if not passes:
        assert "NVIDIA_REQUIRE_CUDA" in unsuited(image, card) and driver in unsuited(image, card)
