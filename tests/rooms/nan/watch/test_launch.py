"""Launches by calls of the driver give what torch's and Triton's give, and step aside where they cannot.

The driver and the kernel are stand-ins on a CPU: copies are copies of memory, and the kernel reads its
arguments where the driver was told they are, as many bytes of each as it takes.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed here", allow_module_level=True)

from lab.rooms.nan.watch import kernel_counter, launch  # noqa: E402
from tests.rooms.nan.watch.test_kernel_counter import group_of, nans, tensors_with  # noqa: E402

STREAM, FUNCTION = 11, 7
USUAL = (8, 8, 8, 8, 8, 4)


def memory(address, count, kind):
    size = count * np.dtype(kind).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), kind)


def count_nan(addresses, words, counts, piece):
    """What the kernel does, by addresses only; NaN of float32, tensors of one piece."""
    for at, size in enumerate(words):
        counts[5 * at] += int(np.isnan(memory(int(addresses[at]), int(size), np.float32)).sum())


class Driver:
    """Does what it is told at once; `refuses` names a call that fails."""

    def __init__(self, sizes=USUAL):
        self.sizes, self.called, self.refuses = sizes, [], None

    def answer(self, name, stream=STREAM):
        assert stream == STREAM
        self.called.append(name)
        return 201 if name == self.refuses else 0

    def cuFuncGetParamInfo(self, function, at, offset, size):
        assert function == FUNCTION
        if at >= len(self.sizes):
            return 1
        size._obj.value = self.sizes[at]
        return 0

    def cuMemcpyHtoDAsync_v2(self, to, of, num_bytes, stream):
        if not (status := self.answer("there", stream)):
            ctypes.memmove(to, of, num_bytes)
        return status

    def cuMemcpyDtoHAsync_v2(self, to, of, num_bytes, stream):
        if not (status := self.answer("back", stream)):
            ctypes.memmove(to, of, num_bytes)
        return status

    def cuLaunchKernel(self, function, x, y, z, threads, ty, tz, shared, stream, arguments, extra):
        assert (function, y, z, threads, ty, tz, shared, extra) == (FUNCTION, 1, 1, 128, 1, 1, 96, None)
        if not (status := self.answer("run", stream)):
            slots = [memory(arguments[at], size, np.uint8).tobytes() for at, size in enumerate(self.sizes)]
            numbers = [int.from_bytes(one, "little") for one in slots]
            assert not any(numbers[6:])
            count = x  # a piece each
            addresses, words = memory(numbers[0], count, np.int64), memory(numbers[1], count, np.int32)
            count_nan(addresses, words, memory(numbers[4], 5 * count, np.int32), numbers[5])
        return status


def compiled(**other):
    about = {"num_warps": 4, "shared": 96, "num_ctas": 1, "global_scratch_size": 0, "profile_scratch_size": 0}
    return SimpleNamespace(function=FUNCTION, metadata=SimpleNamespace(**{**about, **other}))


@pytest.fixture
def driver(monkeypatch):
    found = Driver()
    found.by_triton, found.kernel = 0, compiled()

    def run(pieces, tables, places, piece, dtype, *, pairs):
        assert places == tuple(one.data_ptr() for one in tables)
        found.by_triton += 1
        addresses, words, _, _, counts = (one.numpy() for one in tables)
        count_nan(addresses, words, counts, piece)
        return found.kernel

    monkeypatch.setattr(kernel_counter, "run", run)
    monkeypatch.setattr(kernel_counter, "_stream", lambda device: STREAM)
    monkeypatch.setattr(launch, "driver", lambda: found)
    return found


def counted(group, *some):
    tensors = tensors_with(*some)
    found = group.launch(np.array([one.data_ptr() for one in tensors]))
    return nans(found)


@pytest.mark.parametrize("scratch", [(), (8,), (8, 8)])
def test_the_first_launch_is_tritons_and_the_next_are_the_drivers(driver, scratch):
    driver.sizes = USUAL + scratch
    group = group_of(3)
    for turn, some in enumerate([(1, 2, 3), (0, 0, 0), (3, 0, 16), (0, 1, 0)]):
        assert counted(group, *some) == [*some], turn
    assert driver.by_triton == 1 and driver.called == ["there", "run", "back"] * 3


@pytest.mark.parametrize("call", ["there", "run", "back"])
def test_a_launch_that_the_driver_refuses_is_tritons(driver, call):
    group = group_of(2)
    counted(group, 1, 1)
    driver.refuses = call
    for some in ((2, 0), (0, 3)):  # not what an unfinished launch would have left
        assert counted(group, *some) == [*some]
    driver.refuses = None
    assert counted(group, 4, 1) == [4, 1]
    assert driver.by_triton == 3


@pytest.mark.parametrize(
    "sizes",
    [(), USUAL[:5], (8, 8, 8, 8, 4, 4), (8, 8, 8, 8, 8, 8), (*USUAL, 4), (*USUAL, 8, 8, 8, 8, 8)],
)
def test_a_kernel_that_takes_something_else_stays_tritons(driver, sizes):
    driver.sizes = sizes
    group = group_of(2)
    assert [counted(group, n, 1) for n in (3, 2, 1)] == [[3, 1], [2, 1], [1, 1]]
    assert driver.by_triton == 3 and not driver.called


@pytest.mark.parametrize(
    "kernel",
    [
        None,
        compiled(global_scratch_size=16),
        compiled(profile_scratch_size=16),
        compiled(num_ctas=2),
        compiled(launch_cooperative_grid=True),
        compiled(launch_pdl=True),
        SimpleNamespace(function=FUNCTION),
        SimpleNamespace(function=None, metadata=compiled().metadata),
    ],
)
def test_a_launch_of_another_kind_stays_tritons(driver, kernel):
    driver.kernel = kernel
    group = group_of(1)
    assert [counted(group, n) for n in (3, 2)] == [[3], [2]]
    assert driver.by_triton == 2 and not driver.called


def test_without_a_driver_that_says_what_a_kernel_takes_torch_and_triton_launch(driver, monkeypatch):
    monkeypatch.setattr(launch, "driver", lambda: None)
    group = group_of(1)
    assert [counted(group, n) for n in (3, 2)] == [[3], [2]]
    assert driver.by_triton == 2


def test_memory_of_counts_that_nobody_reads_is_waited_for_before_it_goes(driver):
    """The driver's copy may be on its way into pinned memory that torch would give to others."""
    group, waits = group_of(1), []
    (one,) = tensors_with(2)
    for reads in (True, False):
        found = group.launch(np.array([one.data_ptr()]))
        buffers = found._buffers
        buffers.wait = lambda: waits.append(1)
        if reads:
            found.rows()
        before = len(waits)
        del found
        gc.collect()
        assert len(waits) == before + (not reads)


def test_of_rocm_no_cuda_driver_is_asked(monkeypatch):
    launch.driver.cache_clear()
    monkeypatch.setattr(torch.version, "hip", "6.0")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail(name))
    assert launch.driver() is None
    launch.driver.cache_clear()
