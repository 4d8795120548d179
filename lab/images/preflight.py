"""Whether an image is made for these GPUs and their driver, by what image.toml claims."""

from __future__ import annotations

from collections.abc import Sequence

from lab.core.gpu import Gpu
from lab.errors import GpuError
from lab.images import spec
from lab.images.compare import serves
from lab.images.spec import Image


def refuse_unsuited(image: Image, gpus: Sequence[Gpu], catalogue: Sequence[Image]) -> None:
    """Raise GpuError for a GPU without code in the image, or with a driver that is too old for it.

    What the driver does not report (the architecture, before NVIDIA's 510) is not judged.
    """
    for gpu in gpus:
        if not has_code(image, gpu):
            raise GpuError(
                f"the image {image.name!r} has no code for {gpu.name or 'this GPU'}, which is {gpu.arch}: "
                f"it is made for {' '.join(image.archs)}",
                location=f"GPU {gpu.number} ({gpu.uuid})",
                fix=_other_image(gpu, catalogue),
            )
        if not driver_suffices(image, gpu):
            raise GpuError(
                f"the image {image.name!r} needs driver {image.min_driver} or newer; this host has "
                f"{gpu.driver}",
                location=f"GPU {gpu.number} ({gpu.uuid})",
                fix=f"update the driver; or {_other_image(gpu, catalogue)}",
            )


def has_code(image: Image, gpu: Gpu) -> bool:
    return gpu.arch is None or not image.archs or serves(image.archs, gpu.arch)


def driver_suffices(image: Image, gpu: Gpu) -> bool:
    installed, needed = _version(gpu.driver), _version(image.min_driver)
    return installed is None or needed is None or installed >= needed


def suits(image: Image, gpu: Gpu) -> bool:
    return image.vendor == gpu.vendor and has_code(image, gpu) and driver_suffices(image, gpu)


def fitting_images(gpu: Gpu) -> list[str]:
    """The names of the images that fit this GPU and its driver."""
    return [name for name in spec.names() if suits(spec.load(name), gpu)]


def _other_image(gpu: Gpu, catalogue: Sequence[Image]) -> str:
    fitting = [one.name for one in catalogue if suits(one, gpu)]
    if fitting:
        return f"use --image {' or '.join(fitting)}"
    return "pick another GPU with --gpus, or --image cpu: no image of lab fits this GPU and driver"


def _version(text: str | None) -> tuple[int, ...] | None:
    parts = (text or "").split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else None
