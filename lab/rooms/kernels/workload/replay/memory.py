"""The storages of a recording, as buffers on this machine.

An execution trace names a storage by its address. Every tensor without memory (empty ones, and the wrappers
that tensor parallel ops return) is recorded under the one id of the null address, so that id is no storage.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lab.perfmodel.dtypes import ITEM_BYTES
from lab.rooms.kernels.replay.args import TensorArg
from lab.rooms.kernels.tensors import extent
from lab.rooms.kernels.workload.replay.fill import make


class Memory:
    """Storage id -> the buffer in its place now.

    A buffer that no op wrote is filled once and kept for later passes.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers: dict[int, Any] = {}
        self.parted = 0  # results whose memory the recording keeps apart from what it still belongs to here
        self._unwritten: dict[tuple[int, int], Tensor] = {}
        self._owner: dict[int, int] = {}  # address -> the storage id that was put there last

    def tensor(self, key: tuple[int, int], spec: TensorArg, storage: int, offset: int) -> Tensor:
        """The recorded tensor over its buffer; `key` identifies this use of it, the same in every pass."""
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if 0 in spec.shape:  # an op that grows it must not grow the memory of another one
            return torch.empty(0, dtype=dtype, device=self._place(spec)).as_strided(spec.shape, spec.stride)
        needed = (offset + extent(spec.shape, spec.stride)) * ITEM_BYTES[spec.dtype]
        held = self.buffers.get(storage)
        if held is None or held.nbytes() < needed or held.device.type != self._place(spec).type:
            held = self.buffers[storage] = self._filled(key, spec, offset)
        return over(held, dtype, offset, spec)

    def put(self, storage: int, result: Tensor) -> None:
        """From now on `result` is what the storage holds; a result without memory empties its place."""
        if not has_memory(result):
            self.buffers.pop(storage, None)
            return
        memory = storage_of(result)
        earlier = self._owner.get(memory.data_ptr(), storage)
        held = self.buffers.get(earlier)
        if earlier != storage and held is not None and held.data_ptr() == memory.data_ptr():
            del self.buffers[
                earlier
            ]  # two recorded storages never share a buffer: the older one gets a new one
            self.parted += 1
        self._owner[memory.data_ptr()] = storage
        self.buffers[storage] = memory

    def _place(self, spec: TensorArg) -> torch.device:
        return torch.device("cpu") if spec.device == "cpu" else self.device

    def _filled(self, key: tuple[int, int], spec: TensorArg, offset: int) -> Any:
        if key not in self._unwritten:
            flat = TensorArg(
                dtype=spec.dtype,
                shape=(offset + extent(spec.shape, spec.stride),),
                stride=(1,),
                device=spec.device,
                low=spec.low,
                high=spec.high,
            )
            self._unwritten[key] = make("", flat, self.device, seed=key[0])
        return storage_of(self._unwritten[key])


def has_memory(tensor: Tensor) -> bool:
    """Whether the elements of `tensor` lie in its storage: a wrapper's has a size but no address."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and storage_of(tensor).data_ptr() != 0


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
