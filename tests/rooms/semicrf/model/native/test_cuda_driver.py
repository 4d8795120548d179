"""NVRTC and the driver: found, asked for the right target, cached, and quoted when they fail."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")


from lab.errors import GpuError, MissingError  # noqa: E402
from lab.rooms.semicrf.model.native import cuda as native_cuda  # noqa: E402
from lab.rooms.semicrf.model.native import cuda_driver  # noqa: E402

pytestmark = pytest.mark.torch


class Nvrtc:
    """A library of some version that knows some architectures, and counts what it compiles."""

    def __init__(self, version, known=()):
        self.own, self.known, self.compilations = version, known, 0

    def nvrtcVersion(self, major, minor):
        major._obj.value, minor._obj.value = self.own

    def nvrtcGetNumSupportedArchs(self, number):
        number._obj.value = len(self.known)

    def nvrtcGetSupportedArchs(self, values):
        values[:] = self.known


@pytest.mark.parametrize(
    "version, known, capability, target",
    [
        ((12, 9), (50, 61, 90), (6, 1), "sm_61"),
        ((10, 2), (), (6, 1), "compute_61"),
        ((10, 2), (), (9, 0), "compute_75"),
        ((11, 3), (52, 61, 86), (9, 0), "compute_86"),
    ],
)
def test_a_device_gets_its_own_machine_code_or_the_newest_ptx(version, known, capability, target):
    assert cuda_driver.architecture(Nvrtc(version, known), capability) == target


def test_a_device_that_nvrtc_has_dropped_is_an_error():
    with pytest.raises(MissingError, match=r"NVRTC 13\.0 does not support sm_61, only sm_75 and later"):
        cuda_driver.architecture(Nvrtc((13, 0), (75, 90)), (6, 1))


def test_nvrtc_is_known_by_its_name():
    names = (
        "libnvrtc.so.12",
        "libnvrtc-08c4863f.so.10.2",
        "libnvrtc-builtins.so",
        "libnvrtc.alt.so.12",
        "libx.so",
    )
    assert [cuda_driver.is_nvrtc(name) for name in names] == [True, True, False, False, False]


@pytest.mark.parametrize(
    "name",
    [
        "torch/lib/libnvrtc-08c4863f.so.10.2",
        "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "nvidia/cu13/lib/libnvrtc.so.13",
    ],
)
def test_nvrtc_is_found_where_torchs_wheels_put_it(monkeypatch, tmp_path, name):
    own = tmp_path / name
    own.parent.mkdir(parents=True)
    for place in (own, own.parent / "libnvrtc-builtins.so", own.parent / "libnvrtc.alt.so.13"):
        place.touch()
    monkeypatch.delenv("LAB_NVRTC", raising=False)
    monkeypatch.setattr(cuda_driver, "loaded_libraries", list)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    assert cuda_driver.find_nvrtc() == own
    monkeypatch.setenv("LAB_NVRTC", "/another")
    assert cuda_driver.find_nvrtc() == Path("/another")


def test_an_error_of_the_driver_has_its_words_and_the_kernels_name(monkeypatch):
    def cuGetErrorString(status, text):
        text._obj.value = b"an illegal memory access was encountered"

    monkeypatch.setattr(cuda_driver, "driver", lambda: SimpleNamespace(cuGetErrorString=cuGetErrorString))
    cuda_driver.check_status(0)
    with pytest.raises(GpuError, match="CUDA error 700: an illegal memory access") as told:
        cuda_driver.check_status(700, "messages")
    assert told.value.location == "messages"


def test_what_is_not_a_library_is_an_error(tmp_path):
    (tmp_path / "libnvrtc.so.12").write_bytes(b"nothing")
    with pytest.raises(MissingError, match="NVRTC does not load"):
        cuda_driver.nvrtc(tmp_path / "libnvrtc.so.12")


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """`compiled` with a compiler that counts, and a cache of its own."""
    library = Nvrtc((12, 9))

    def compile_now(library, path, source, options):
        library.compilations += 1
        return source.encode()

    monkeypatch.setattr(cuda_driver, "nvrtc", lambda path: library)
    monkeypatch.setattr(cuda_driver, "compile_now", compile_now)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return library


def test_what_was_compiled_is_kept_by_source_target_and_sizes(counted):
    requests = [
        ("a", "sm_61", {"N": 4}),
        ("a", "sm_61", {"N": 4}),
        ("b", "sm_61", {"N": 4}),
        ("a", "sm_70", {"N": 4}),
        ("a", "sm_61", {"N": 8}),
    ]
    images = [cuda_driver.compiled(Path("nvrtc"), *one) for one in requests]
    assert images == [b"a", b"a", b"b", b"a", b"a"] and counted.compilations == 4


def test_a_cache_that_cannot_be_written_is_logged_and_not_used(counted, tmp_path, caplog):
    (tmp_path / "lab").write_text("a file in the way")
    with caplog.at_level(logging.INFO, logger="lab.semicrf"):
        assert cuda_driver.compiled(Path("nvrtc"), "a", "sm_61", {}) == b"a"
    assert "compiled kernels are not kept" in caplog.text


def found_nvrtc():
    path = cuda_driver.find_nvrtc()
    if path is None:
        pytest.skip("no libnvrtc here (LAB_NVRTC names one)")
    return path


@pytest.mark.parametrize("labels, dtype", [(24, torch.float32), (128, torch.float64)], ids=str)
@pytest.mark.parametrize("capability", [(6, 1), (9, 0)], ids=["Pascal", "Hopper"])
def test_nvrtc_compiles_the_kernels_without_a_gpu(monkeypatch, tmp_path, capability, labels, dtype):
    path = found_nvrtc()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = f"compute_{10 * capability[0] + capability[1]}"
    try:
        known = cuda_driver.architecture(cuda_driver.nvrtc(path), capability)
    except MissingError as error:
        pytest.skip(error.problem)
    if known.rpartition("_")[2] != target.rpartition("_")[2]:
        pytest.skip(f"this NVRTC is older than {target}")
    defines = native_cuda.defines(dtype, native_cuda.SIZES.padded(labels), native_cuda.SIZES)
    ptx = cuda_driver.compiled(path, native_cuda.SOURCE.read_text(), target, defines).decode()
    assert f".target sm_{target[8:]}" in ptx and ".entry messages(" in ptx and ".entry best_path(" in ptx
    assert "atom." not in ptx and "red." not in ptx.replace("shared.", "")


def test_nvrtcs_own_words_are_shown(monkeypatch, tmp_path):
    path = found_nvrtc()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingError, match="undefined_thing"):
        cuda_driver.compiled(path, "int x = undefined_thing;", "compute_75", {})


class Driver:
    """libcuda as far as copies to the host go: they are done when somebody waits for their event."""

    def __init__(self):
        self.memory, self.queued, self.behind, self.events = [], [], {}, 0
        self.failed = set()

    def cuCtxGetCurrent(self, context):
        context._obj.value = 7
        return 0

    def cuStreamCreate(self, stream, flags):
        return 0

    def cuEventCreate(self, event, flags):
        self.events += 1
        event._obj.value = self.events
        return 0

    def cuModuleLoadData(self, module, image):
        return 0

    def cuMemAllocHost_v2(self, host, size):
        self.memory.append(ctypes.create_string_buffer(size.value))
        host._obj.value = ctypes.addressof(self.memory[-1])
        return 0

    def cuMemcpyDtoHAsync_v2(self, to, source, size, stream):
        self.queued.append((to.value, source.value, size.value))
        return 0

    def cuEventRecord(self, event, stream):
        self.behind[event.value], self.queued = self.behind.get(event.value, []) + self.queued, []
        return 0

    def cuGetErrorString(self, status, text):
        text._obj.value = b"operation not permitted on an event last recorded in a capturing stream"

    def cuEventSynchronize(self, event):
        for copy in self.behind.pop(event.value, []):
            ctypes.memmove(*copy)
        return int(event.value in self.failed)


@pytest.fixture
def machine(monkeypatch):
    own = Driver()
    monkeypatch.setattr(cuda_driver, "driver", lambda: own)
    monkeypatch.setattr(cuda_driver, "primary_context", lambda index: ctypes.c_void_p(7))
    monkeypatch.setattr(cuda_driver, "raw_stream", lambda index: 3)
    return cuda_driver.Machine(torch.device("cuda", 0), b"")


def test_values_of_a_device_arrive_whole_while_others_are_fetched_and_their_room_serves_again(machine):
    given = [torch.arange(6, dtype=torch.float64).reshape(2, 3) * n for n in (1, 2, 3)]
    first, second = machine.fetched(given[0]), machine.fetched(given[1])
    assert first.numpy().tolist() == given[0].tolist()
    assert second.numpy().tolist() == given[1].tolist()
    del first
    third = machine.fetched(given[2])
    assert third.numpy().tolist() == given[2].tolist()
    assert second.numpy().tolist() == given[1].tolist()
    whole = torch.tensor([1, 0, 2], dtype=torch.int32)
    flags = machine.fetched(whole)
    assert flags.numpy().dtype == "int32"
    assert flags.numpy().tolist() == [1, 0, 2]
    assert len(cuda_driver.driver().memory) == 3


def test_a_copy_that_nobody_waited_for_does_not_land_on_the_next_one(machine):
    zeros, ones = torch.zeros(2), torch.ones(2)
    machine.fetched(zeros)  # and given up
    held = machine.fetched(ones)
    assert held.numpy().tolist() == [1, 1]
    assert not cuda_driver.driver().behind
    assert len(cuda_driver.driver().memory) == 1


def test_an_event_that_a_failed_capture_holds_is_replaced(machine):
    zeros, ones = torch.zeros(2), torch.ones(2)
    lost = machine.fetched(zeros)
    cuda_driver.driver().failed.add(lost.room.event.value)
    with pytest.raises(GpuError, match="CUDA error 1"):
        lost.numpy()
    del lost
    assert machine.fetched(ones).numpy().tolist() == [1, 1]
