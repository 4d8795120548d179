"""Checksums of tensors by their bits: the sum over 64-bit words of mix64(word xor key(place)), modulo 2^64.

The sum needs no order, so threads and blocks add up in any, and atomics make no difference. Place
and mixing make it see what plain sums are blind to: swapped elements, flipped bits that cancel, constants.
Bytes are those of the contiguous tensor, padded with zeros to whole words. -0.0 and 0.0 differ, NaNs by bits.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

KEY = 0x1E3779B97F4A7C15
FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
CHUNK_WORDS = 1 << 20  # that numpy mixes at a time: it needs temporaries
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)
NOTHING = np.zeros(0, np.uint8)
_ORDINARY = (Tensor, torch.nn.Parameter)


def tensors_in(value: Any, depth: int = 0) -> list[Tensor]:
    """All tensors in nested lists, tuples, dicts and what looks like one (a ModelOutput), in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif hasattr(value, "__dataclass_fields__"):
        value = vars(value).values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [] if depth > 8 else [tensor for inner in value for tensor in tensors_in(inner, depth + 1)]


def dense(value: Tensor) -> Tensor | None:
    """The plain tensor that holds all bits of `value` that are here (a rank's part); None: it has none."""
    if type(value) not in _ORDINARY:
        local = getattr(value, "_local_tensor", None)  # a DTensor; `full_tensor` would be a collective
        if local is None and hasattr(value, "elem") and hasattr(value, "wait"):
            local = value.wait()  # an AsyncCollectiveTensor
        return dense(local) if isinstance(local, Tensor) and local is not value else None
    if value.layout is not torch.strided or value.device.type == "meta" or value.is_quantized:
        return None
    if value.numel() and not value.untyped_storage().nbytes():  # freed, as FSDP does with a whole weight
        return None
    value = value.detach()
    if value.is_conj() or value.is_neg():
        value = value.resolve_conj().resolve_neg()
    return value.contiguous()


def host_sum(tensor: Tensor) -> int:
    """Checksum a dense tensor in this machine's memory, by numpy.

    Not through `Tensor.numpy`, after which a storage cannot be resized: FSDP frees its weights in that way.
    """
    size = tensor.numel() * tensor.element_size()
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(tensor.data_ptr())) if size else NOTHING
    total = 0
    for start in range(0, len(raw), 8 * CHUNK_WORDS):
        part = raw[start : start + 8 * CHUNK_WORDS]
        if len(part) % 8:
            part = np.concatenate([part, np.zeros(-len(part) % 8, np.uint8)])
        place = np.arange(start // 8, start // 8 + len(part) // 8, dtype=np.uint64)
        z = part.view(np.uint64) ^ (place * np.uint64(KEY))
        z = (z ^ (z >> _30)) * np.uint64(FACTORS[0])
        z = (z ^ (z >> _27)) * np.uint64(FACTORS[1])
        total += int((z ^ (z >> _31)).sum(dtype=np.uint64))
    return total % 2**64


def mix64(z: Tensor) -> Tensor:
    """A bijection of 64-bit words (int64, wrapping); shifts are logical by a mask."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * (FACTORS[0] - 2**64)
    z = (z ^ ((z >> 27) & (2**37 - 1))) * (FACTORS[1] - 2**64)
    return z ^ ((z >> 31) & (2**33 - 1))


class Sums:
    """Checksums of one device. On a GPU they stay there until they are read, without one wait; without Triton
    each tensor is copied to the host.

    `add` gives a slot per tensor; a group takes one launch. `read` gives all as hex texts.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kernel = _kernel() if device.type == "cuda" else None
        self._count, self._on_host, self._on_device = 0, list[int](), list[Tensor]()

    def add(self, tensors: Sequence[Tensor]) -> list[int]:
        """Dense tensors of this device -> their slots."""
        slots = list(range(self._count, self._count + len(tensors)))
        self._count += len(tensors)
        if self.kernel is None:
            self._on_host += [host_sum(tensor.cpu()) for tensor in tensors]
        elif tensors:
            self._on_device.append(torch.zeros(len(tensors), dtype=torch.int64, device=self.device))
            self.kernel.launch(tensors, self._on_device[-1])
        return slots

    def read(self) -> list[str]:
        """All checksums so far, by slot; begins anew."""
        words = self._on_host
        if self._on_device:
            words = [word % 2**64 for word in torch.cat(self._on_device).cpu().tolist()]
        self._count, self._on_host, self._on_device = 0, [], []
        return [f"{word:016x}" for word in words]


def _kernel() -> Any:
    """The kernel's module; None without Triton."""
    try:
        from lab.workload.recorder import kernel
    except ImportError as error:
        print(f"lab: checksums by the CPU, which is slower: {error}", file=sys.stderr)
        return None
    return kernel
