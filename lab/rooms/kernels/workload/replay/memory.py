"""The storages of a recording, as buffers on this machine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lab.rooms.kernels.replay.args import TensorArg
from lab.rooms.kernels.tensors import ITEM_BYTES, extent
from lab.rooms.kernels.workload.replay.fill import make


class Memory:
    """Storage id -> the buffer in its place now.

    A buffer that no op wrote is filled once and kept for later passes.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.now: dict[int, Any] = {}
        self._kept: dict[tuple[int, int], Tensor] = {}

    def tensor(self, key: tuple[int, int], spec: TensorArg, storage: int, offset: int) -> Tensor:
        """The recorded tensor over its buffer; `key` identifies this use of it, the same in every pass."""
        dtype: torch.dtype = getattr(torch, spec.dtype)
        needed = (offset + extent(spec.shape, spec.stride)) * ITEM_BYTES[spec.dtype]
        wanted = "cpu" if spec.device == "cpu" else self.device.type
        held = self.now.get(storage)
        if held is None or held.nbytes() < needed or held.device.type != wanted:
            held = self.now[storage] = self._filled(key, spec, offset)
        return over(held, dtype, offset, spec)

    def _filled(self, key: tuple[int, int], spec: TensorArg, offset: int) -> Any:
        if key not in self._kept:
            whole = TensorArg(
                dtype=spec.dtype,
                shape=(offset + extent(spec.shape, spec.stride),),
                stride=(1,),
                device=spec.device,
                low=spec.low,
                high=spec.high,
            )
            self._kept[key] = make("", whole, self.device, seed=key[0])
        return storage_of(self._kept[key])


def storage_of(tensor: Tensor) -> Any:
    """The bytes of a tensor; before torch 2.0 they are inside a typed storage."""
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    return tensor.storage()._storage  # type: ignore[no-untyped-call]


def over(storage: Any, dtype: torch.dtype, offset: int, spec: TensorArg) -> Tensor:
    """A tensor of `spec` over the bytes of `storage`, from element `offset`."""
    empty = torch.empty(0, dtype=dtype, device=storage.device)
    if not hasattr(empty, "untyped_storage"):
        storage = torch._TypedStorage(wrap_storage=storage, dtype=dtype)  # type: ignore[attr-defined]
    return empty.set_(storage, offset, spec.shape, spec.stride)
