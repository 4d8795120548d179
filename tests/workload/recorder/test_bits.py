"""Checksums by bits: what they see, and that numpy and the kernel agree with plain Python."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from lab.workload.recorder.bits import Sums, dense, host_sum  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

pytestmark = pytest.mark.torch
WORD = 2**64


def by_hand(raw: bytes) -> int:
    total = 0
    for place in range(-(-len(raw) // 8)):
        z = int.from_bytes(raw[8 * place : 8 * place + 8].ljust(8, b"\0"), "little")
        z ^= place * 0x1E3779B97F4A7C15 % WORD
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
        total += z ^ z >> 31
    return total % WORD


def of(tensor) -> int:
    return host_sum(dense(tensor))


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 8, 9, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.complex64])
def test_the_sum_is_that_of_plain_python(size, dtype):
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    raw = dense(tensor).reshape(-1).view(torch.uint8).numpy().tobytes()
    assert of(tensor) == by_hand(raw)


def test_chunks_add_up(monkeypatch):
    tensor = torch.randn(10_001, generator=torch.Generator().manual_seed(1))
    whole = of(tensor)
    monkeypatch.setattr("lab.workload.recorder.bits.CHUNK_WORDS", 64)
    assert of(tensor) == whole


def test_what_other_sums_are_blind_to_changes_it():
    base = torch.arange(64, dtype=torch.float32)
    swapped = base.clone()
    swapped[[3, 40]] = swapped[[40, 3]]
    up_and_down = base.clone().view(torch.int32)
    up_and_down[0] ^= 1
    up_and_down[2] ^= 1
    constants = [torch.full((64,), value) for value in (0.0, 1.0, 7.0, -0.0)]
    seen = [of(one) for one in (base, swapped, up_and_down.view(torch.float32), *constants)]
    assert len(set(seen)) == len(seen)
    assert of(base.reshape(8, 8).t()) != of(base.reshape(8, 8)) == of(base)


def test_a_nan_equals_itself_and_another_payload_does_not():
    nan = torch.tensor([float("nan")])
    other = (nan.view(torch.int32) ^ 1).view(torch.float32)
    assert of(nan) == of(nan.clone()) != of(other)


class HostKernel:
    """As the kernel on a GPU: sums into memory of the device."""

    @staticmethod
    def launch(tensors, sums):
        for index, tensor in enumerate(tensors):
            value = host_sum(tensor)
            sums[index] = value - WORD if value >= WORD // 2 else value


@pytest.mark.parametrize("kernel", [None, HostKernel])
def test_slots_are_read_in_order_over_several_calls(kernel):
    sums = Sums(torch.device("cpu"))
    sums.kernel = kernel
    tensors = [torch.tensor([float(n)]) for n in range(11)]
    slots = [sums.add([one])[0] for one in tensors[:5]] + sums.add(tensors[5:8]) + sums.add(tensors[8:])
    texts = sums.read()
    assert [int(texts[slot], 16) for slot in slots] == [of(one) for one in tensors]
    (again,) = sums.add([tensors[7]])
    assert int(sums.read()[again], 16) == of(tensors[7])


def test_what_has_no_dense_bits_here_is_none():
    assert dense(torch.ones(2, device="meta")) is None
    assert dense(torch.eye(2).to_sparse()) is None
    assert dense(torch.randn(3, dtype=torch.complex64).conj()) is not None


PROGRAM = """
import torch
from lab.workload.recorder import kernel as bits_kernel  # noqa: E402
from lab.workload.recorder.bits import host_sum  # noqa: E402
bits_kernel.BLOCK = 64
make = torch.Generator().manual_seed(0)
for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.float64):
    sizes = (1, 3, 7, 8, 64, 511, 512, 513, 5003)
    tensors = [torch.randint(0, 250, (n,), generator=make).to(dtype) for n in sizes]
    tensors.append(tensors[-1][1:])
    found = torch.zeros(len(tensors), dtype=torch.int64)
    bits_kernel.launch(tensors, found)
    assert [word % 2**64 for word in found.tolist()] == [host_sum(one) for one in tensors], dtype
    alone = torch.zeros(len(tensors), dtype=torch.int64)
    for at, one in enumerate(tensors):
        bits_kernel.launch([one], alone[at : at + 1])
    assert found.tolist() == alone.tolist(), dtype
bits_kernel.launch([torch.ones(()), torch.empty(0)], torch.zeros(2, dtype=torch.int64))
bits_kernel.launch([torch.ones(())], torch.zeros(1, dtype=torch.int64))
print("equal")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed here")
def test_the_kernel_agrees():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=900
    )
    assert done.stdout == "equal\n", done.stderr
