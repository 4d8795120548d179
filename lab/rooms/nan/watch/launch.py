"""A launch of the watch's kernel and the two copies around it, by calls of NVIDIA's driver.

Torch's copies and Triton's launcher take twice the host's time, which a GPU's decode step waits for. They
serve where something is not as expected here: another vendor, a driver that does not say what a kernel takes
(before CUDA 12.4), a kernel that takes something else.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

TAKEN = (8, 8, 8, 8, 8, 4)  # bytes of each of the kernel's parameters: five addresses and a number
_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_uint
_SIZE = ctypes.c_size_t
_CALLS: dict[str, list[Any]] = {
    "cuMemcpyHtoDAsync_v2": [_ADDRESS, _ADDRESS, _SIZE, _ADDRESS],
    "cuMemcpyDtoHAsync_v2": [_ADDRESS, _ADDRESS, _SIZE, _ADDRESS],
    "cuLaunchKernel": [_ADDRESS, *[_NUMBER] * 7, *[_ADDRESS] * 3],
    "cuFuncGetParamInfo": [_ADDRESS, _SIZE, *[ctypes.POINTER(_SIZE)] * 2],
}


@dataclass(frozen=True)
class Copy:
    """Addresses, and how many bytes."""

    to: int
    of: int
    num_bytes: int


class Launch:
    """The same launch again and again: only what the memory holds is another."""

    def __init__(
        self, driver: Any, kernel: Any, pieces: int, arguments: tuple[int, ...], copies: tuple[Copy, Copy]
    ) -> None:
        """`copies`: to the GPU before the kernel, and from it after the kernel."""
        upload, download = copies
        self._slots = np.array([*arguments, 0, 0, 0, 0], np.int64)  # more than any kernel's scratch memory
        first_address = self._slots.ctypes.data
        addresses = (_ADDRESS * len(self._slots))(
            *range(first_address, first_address + 8 * len(self._slots), 8)
        )
        about = kernel.metadata
        self._kernel = (kernel.function, pieces, 1, 1, 32 * about.num_warps, 1, 1, about.shared)
        self._uploaded = (upload.to, upload.of, upload.num_bytes)
        self._back = (download.to, download.of, download.num_bytes)
        self._addresses, self._compiled = addresses, kernel  # a kernel that dies is unloaded
        self._to_gpu, self._from_gpu = driver.cuMemcpyHtoDAsync_v2, driver.cuMemcpyDtoHAsync_v2
        self._run = driver.cuLaunchKernel

    def __call__(self, stream: int) -> bool:
        """Queue all three; False if the driver refuses one, as in a thread that has not used the GPU yet."""
        return not (
            self._to_gpu(*self._uploaded, stream)
            or self._run(*self._kernel, stream, self._addresses, None)
            or self._from_gpu(*self._back, stream)
        )


def launch_of(
    kernel: Any, pieces: int, arguments: tuple[int, ...], copies: tuple[Copy, Copy]
) -> Launch | None:
    """For a kernel that Triton has compiled and loaded; None where the driver's calls cannot be trusted."""
    library = driver()
    if library is None or not _is_as_expected(library, kernel):
        return None
    return Launch(library, kernel, pieces, arguments, copies)


def _is_as_expected(driver: Any, kernel: Any) -> bool:
    """Whether this launches with blocks of so many warps and these parameters, and nothing else."""
    about = getattr(kernel, "metadata", None)
    if not isinstance(getattr(kernel, "function", None), int) or about is None:
        return False
    special = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl")
    if any(getattr(about, name, 0) for name in special) or getattr(about, "num_ctas", 1) != 1:
        return False
    sizes = parameter_sizes(driver, kernel.function)
    return sizes[: len(TAKEN)] == TAKEN and {*sizes[len(TAKEN) :]} <= {8} and len(sizes) <= len(TAKEN) + 4


def parameter_sizes(driver: Any, function: int) -> tuple[int, ...]:
    """In bytes, as the driver has loaded it."""
    offset, size, sizes = _SIZE(), _SIZE(), list[int]()
    while not driver.cuFuncGetParamInfo(function, len(sizes), ctypes.byref(offset), ctypes.byref(size)):
        sizes.append(size.value)
    return tuple(sizes)


@functools.cache
def driver() -> Any:
    """libcuda, if it has these calls; None if not."""
    if torch.version.hip or not torch.version.cuda:
        return None
    try:
        library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in _CALLS.items():
            getattr(library, name).argtypes = arguments
    except (OSError, AttributeError):
        return None
    return library
