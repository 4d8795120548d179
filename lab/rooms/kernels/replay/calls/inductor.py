"""Inductor's Triton kernels in a replay: their arguments, and the file that they are built from.

The generated file is code, and a replay runs it: it is taken only from folders that the user names, and only
if its content has the hash that the recording names, so that it is the code that ran.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from lab.recordings.compiled import InductorKernel, is_inductor, read_inductor, read_provenance
from lab.rooms.kernels.replay.args import Arg, RawArgs, TritonKernel
from lab.rooms.kernels.replay.arguments.described import Described
from lab.rooms.kernels.replay.arguments.from_trace import traced_tensor
from lab.rooms.kernels.replay.arguments.schemas import Unresolved, literal_of
from lab.rooms.kernels.replay.calls.recording import Op
from lab.rooms.kernels.tensors import DTYPES

__all__ = ["InductorKernels", "is_inductor"]


class InductorKernels:
    """The Inductor kernels of one trace; `needed` are the files of those that can be replayed."""

    def __init__(self, trace: Path, folders: Sequence[Path]) -> None:
        self._kernels = read_inductor(trace)
        self._files = read_provenance(folders).sources if folders else {}
        self._folders = bool(folders)
        self._sources: dict[str, str | None] = {}
        self.needed: dict[str, TritonKernel] = {}

    def reason(self, op: Op) -> str:
        """Why this kernel cannot be replayed; "" if it can."""
        kernel = self._kernels.get(op.external_id)
        if kernel is None:
            return (
                "an Inductor kernel, and the recording has no hash of its file (torch 2.6 or newer writes it)"
            )
        if not self._folders:
            return f"an Inductor kernel: name the folder of its file {kernel.hash}.py with --inductor"
        if kernel.hash not in self._files:
            return f"an Inductor kernel, and its file {kernel.hash}.py is not in the folders of --inductor"
        if self._source(kernel) is None:
            return (
                f"an Inductor kernel, and its file {kernel.hash}.py was changed: its content has another hash"
            )
        if op.raw is None:
            return "an Inductor kernel, and the trace has no argument types: record with record_shapes=True"
        return ""

    def describe(self, op: Op) -> Described:
        """Arguments in the order of the recording: tensors, then the sizes. Raises Unresolved."""
        kernel = self._kernels[op.external_id]
        args = tuple(_arg(op.raw, index) for index in range(len(op.raw.types))) if op.raw else ()
        self.needed[kernel.hash] = TritonKernel(
            name=kernel.name,
            hash=kernel.hash,
            source=self._source(kernel) or "",
            block_sizes=kernel.kwargs,
            num_warps=kernel.num_warps,
            num_stages=kernel.num_stages,
        )
        return Described(overload=kernel.hash, args=args)

    def _source(self, kernel: InductorKernel) -> str | None:
        """The text of the kernel's file, None if it is not the one that ran."""
        if kernel.hash not in self._sources:
            text = self._files[kernel.hash].read_text(encoding="utf-8", errors="replace")
            self._sources[kernel.hash] = text if hash_of(text) == kernel.hash else None
        return self._sources[kernel.hash]


def hash_of(source: str) -> str:
    """The name that Inductor gives to a file of this content (torch/_inductor/codecache.py, code_hash)."""
    digest = hashlib.sha256(source.strip().encode()).digest()
    return "c" + base64.b32encode(digest)[:51].decode().lower()


def _arg(raw: RawArgs, index: int) -> Arg:
    kind = raw.types[index]
    name = f"arg{index}"
    if kind in DTYPES:
        stride = raw.strides[index] if index < len(raw.strides) else []
        return Arg(
            name=name, type="Tensor", tensor=traced_tensor(kind, raw.dims[index], stride, number=False)
        )
    literal = raw.concrete[index] if index < len(raw.concrete) else ""
    if literal == "":
        raise Unresolved(f"the trace does not hold argument {index} of this Triton kernel")
    return Arg(name=name, type="int", value=literal_of(literal))
