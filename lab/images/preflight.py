"""Whether an image is made for these GPUs and their driver, by what it claims of itself."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from lab.core.gpu import Gpu
from lab.errors import GpuError
from lab.images import spec
from lab.images.compare import serves
from lab.images.spec import Image

DISABLE_REQUIRE = "NVIDIA_DISABLE_REQUIRE"
# The first driver branch of each CUDA version: NVIDIA's release notes, table of driver versions.
BRANCHES = (
    "410=10.0 418=10.1 440=10.2 450=11.0 455=11.1 460=11.2 465=11.3 470=11.4 495=11.5 510=11.6 515=11.7 "
    "520=11.8 525=12.0 530=12.1 535=12.2 545=12.3 550=12.4 555=12.5 560=12.6 565=12.7 570=12.8 575=12.9 "
    "580=13.0 590=13.1"
)
CUDA_OF_BRANCH = {int(word[:3]): word[4:] for word in BRANCHES.split()}
CONDITION = re.compile(r"(cuda|driver|brand|arch)(>=|<=|!=|=|<|>)([\w.]+)")
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
CONSUMER = re.compile(r"GeForce|TITAN", re.IGNORECASE)  # for these the bases list no driver branch


def refuse_unsuited(image: Image, gpus: Sequence[Gpu], catalogue: Sequence[Image]) -> None:
    """Raise GpuError for a GPU without code in the image, or with a driver that is too old for it.

    What the driver does not report (the architecture, before NVIDIA's 510) is not judged.
    """
    for gpu in gpus:
        if reason := unsuited(image, gpu):
            update = "" if reason.startswith("no code") else "update the driver; or "
            raise GpuError(
                f"the image {image.name!r} {'has' if reason.startswith('no code') else 'needs'} "
                f"{reason.removeprefix('needs ')}",
                location=f"GPU {gpu.number} ({gpu.uuid})",
                fix=f"{update}{_other_image(gpu, catalogue)}",
            )


def unsuited(image: Image, gpu: Gpu) -> str:
    """Why an image of the GPU's vendor does not fit it; "" if it does."""
    if gpu.arch is not None and image.archs and not serves(image.archs, gpu.arch):
        archs = " ".join(image.archs)
        return f"no code for {gpu.name or 'this GPU'}, which is {gpu.arch}: it is made for {archs}"
    installed, needed = _version(gpu.driver), _version(image.min_driver)
    if installed and needed and installed < needed:
        return f"needs driver {image.min_driver} or newer; this host has {gpu.driver}"
    if image.require and DISABLE_REQUIRE not in image.env and not satisfies(image.require, gpu):
        return (
            f"needs what its NVIDIA_REQUIRE_CUDA says ({image.require.split()[0]}); this host "
            f"has {gpu.driver} (CUDA {cuda_of(gpu.driver)}). --env {DISABLE_REQUIRE}=1 lifts that "
            "where CUDA's minor versions are compatible"
        )
    return ""


def satisfies(require: str, gpu: Gpu) -> bool:
    """Whether NVIDIA's toolkit starts an image with this NVIDIA_REQUIRE_CUDA on the GPU: any of its words, of
    which each is conditions with commas between (NVIDIA/nvidia-container-toolkit#152)."""
    values = {"driver": gpu.driver, "cuda": cuda_of(gpu.driver), "arch": (gpu.arch or "").removeprefix("sm_")}
    if not all((gpu.driver, values["cuda"])):
        return True  # nothing to judge by
    return any(all(_holds(text, values, gpu) for text in word.split(",")) for word in require.split())


def _holds(text: str, values: dict[str, str | None], gpu: Gpu) -> bool:
    match = CONDITION.fullmatch(text)
    if match is None:
        return True
    name, sign, wanted = match.groups()
    if name == "brand":
        consumer = bool(CONSUMER.search(gpu.name))
        is_brand = consumer == (wanted in ("geforce", "titan")) and wanted != "unknown"
        return is_brand if sign == "=" else not is_brand
    present, limit = _version(values[name]), _version(wanted)
    return present is None or limit is None or bool(COMPARISONS[sign](present[: len(limit)], limit))


def cuda_of(driver: str | None) -> str | None:
    """The CUDA version that comes with a driver of NVIDIA's."""
    version = _version(driver)
    branches = [branch for branch in CUDA_OF_BRANCH if version and branch <= version[0]]
    return CUDA_OF_BRANCH[max(branches)] if branches else None


def suits(image: Image, gpu: Gpu) -> bool:
    return image.vendor == gpu.vendor and not unsuited(image, gpu)


def fitting_images(gpu: Gpu) -> list[str]:
    """The names of the images that fit this GPU and its driver."""
    return [name for name in spec.names() if suits(spec.load(name), gpu)]


def _other_image(gpu: Gpu, catalogue: Sequence[Image]) -> str:
    fitting = [image.name for image in catalogue if suits(image, gpu)]
    if fitting:
        return f"use --image {' or '.join(fitting)}"
    return "pick another GPU with --gpus, or --image cpu: no image of lab fits this GPU and driver"


def _version(text: str | None) -> tuple[int, ...] | None:
    parts = (text or "").split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else None
