"""CUDA C at run time: compiled by NVRTC, loaded and launched through the driver, by ctypes alone.

No nvcc, no headers, no build of torch: NVRTC comes with torch's CUDA wheels (torch 1.12 has it in torch/lib,
later ones in nvidia packages beside it), libcuda with the driver. Kernels run in torch's own context and on
its current stream, so they are ordered with all of torch's work. The compiled code is cached by the hash of
all it depends on.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import hashlib
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lab.core.files import write_atomic
from lab.errors import GpuError, LabError, MissingError
from lab.rooms.semicrf.model.native import build as native_build
from lab.rooms.semicrf.model.native.cuda_plan import Launch, Plan

log = logging.getLogger("lab.semicrf")
TORCH = "backend='torch' needs no compiler"
NON_BLOCKING, NO_TIMING = 1, 2
"""Of a stream: it does not wait for the default one. Of an event: it only orders."""


class Addressed(Protocol):
    """A tensor, or a number that goes the same way."""

    def data_ptr(self) -> int: ...


class Machine:
    """The kernels of one compiled image on one device."""

    def __init__(self, device: torch.device, image: bytes) -> None:
        self.device = device
        self.context = primary_context(device.index)
        self.module = ctypes.c_void_p()
        self.ready: weakref.WeakKeyDictionary[Plan, Ready] = weakref.WeakKeyDictionary()
        self.lock = threading.Lock()
        self.rooms: dict[tuple[torch.Size, torch.dtype], list[Room]] = {}
        self.aside = ctypes.c_void_p()
        with self.current():
            check_status(driver().cuStreamCreate(ctypes.byref(self.aside), NON_BLOCKING))
            self.events = (new_event(), new_event())
            check_status(driver().cuModuleLoadData(ctypes.byref(self.module), image))

    def current(self) -> Current:
        """Make torch's context current: autograd's threads may have none, and another device may have one."""
        return Current(self.context)

    def run(self, plan: Plan, **tensors: Addressed) -> None:
        """Put a plan's kernels on torch's current stream, with these tensors bound to its names."""
        slots = plan.slots(tensors[name].data_ptr() for name in plan.names)
        stream = self.stream()
        launch = driver().cuLaunchKernel
        forked = False
        # The driver copies arguments at the launch, so the plan's slots serve one call after the other.
        with self.lock, self.current():
            ready = self.ready.get(plan) or self.prepared(plan)
            ready.slots[:] = slots
            for shape, addresses, of in ready.launches:
                if of.aside and not forked:
                    self.follow(stream, self.aside, self.events[0])
                if of.joins and forked:
                    self.follow(self.aside, stream, self.events[1])
                forked = (forked or of.aside) and not of.joins
                status = launch(*shape, self.aside if of.aside else stream, addresses, None)
                if status:
                    check_status(status, of.kernel)
            if forked:
                self.follow(self.aside, stream, self.events[1])

    def stream(self) -> ctypes.c_void_p:
        """torch's current one."""
        return ctypes.c_void_p(raw_stream(self.device.index))

    def fetched(self, value: Tensor) -> Fetched:
        """A copy of a device's values, which are contiguous, queued to the host."""
        rooms = self.rooms.setdefault((value.shape, value.dtype), [])
        with self.current():
            try:
                room = rooms.pop()
            except IndexError:
                room = Room(value)
            if room.due and driver().cuEventSynchronize(room.event):  # the copy before was not waited for
                room.event = new_event()  # it belongs to a capture that failed
            stream, room.due = self.stream(), True
            source = ctypes.c_void_p(value.data_ptr())
            status = driver().cuMemcpyDtoHAsync_v2(room.host, source, room.bytes, stream)
            check_status(status, "a copy to the host")
            check_status(driver().cuEventRecord(room.event, stream))
        return Fetched(self, room, rooms)

    def follow(self, ahead: ctypes.c_void_p, behind: ctypes.c_void_p, event: ctypes.c_void_p) -> None:
        """Make later work of the stream `behind` wait for what is on `ahead` now."""
        check_status(driver().cuEventRecord(event, ahead))
        check_status(driver().cuStreamWaitEvent(behind, event, 0))

    def prepared(self, plan: Plan) -> Ready:
        """A plan's launches with everything but the stream and the slots' values."""
        slots = np.zeros(len(plan.offsets), np.uint64)
        launches = []
        for launch, addresses in zip(plan.launches, argument_addresses(plan, slots), strict=True):
            grid = (*launch.grid, 1, 1)[:3]
            shape = (self.function(launch.kernel), *grid, launch.threads, 1, 1, 0)
            launches.append((shape, addresses, launch))
        self.ready[plan] = Ready(slots, launches)
        return self.ready[plan]

    def function(self, name: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        check_status(driver().cuModuleGetFunction(ctypes.byref(handle), self.module, name.encode()), name)
        return handle


class Current:
    """A context that is current inside; the usual one costs a single call."""

    __slots__ = ("context", "pushed")

    def __init__(self, context: ctypes.c_void_p) -> None:
        self.context, self.pushed = context, False

    def __enter__(self) -> None:
        active = ctypes.c_void_p()
        driver().cuCtxGetCurrent(ctypes.byref(active))
        if active.value != self.context.value:
            check_status(driver().cuCtxPushCurrent_v2(self.context))
            self.pushed = True

    def __exit__(self, *_: object) -> None:
        if self.pushed:
            check_status(driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))


class Room:
    """Pinned memory for values like these, used again and again: torch's own takes as long as the copy.

    It lives as long as the machine, because a copy into it may be on its way.
    """

    def __init__(self, like: Tensor) -> None:
        number = torch.empty(0, dtype=like.dtype, device="cpu").numpy().dtype
        self.bytes = ctypes.c_size_t(like.numel() * number.itemsize)
        self.host = ctypes.c_void_p()
        check_status(driver().cuMemAllocHost_v2(ctypes.byref(self.host), self.bytes), "pinned memory")
        memory = (ctypes.c_uint8 * self.bytes.value).from_address(self.host.value or 0)
        self.values: np.ndarray = np.frombuffer(memoryview(memory), number).reshape(like.shape)
        self.event, self.due = new_event(), False


def new_event() -> ctypes.c_void_p:
    """One that only orders."""
    event = ctypes.c_void_p()
    check_status(driver().cuEventCreate(ctypes.byref(event), NO_TIMING))
    return event


class Fetched:
    """Values on their way to the host, and an event behind them."""

    def __init__(self, machine: Machine, room: Room, home: list[Room]) -> None:
        self.machine, self.room, self.home = machine, room, home

    def numpy(self) -> np.ndarray:
        """Waits for them, and for nothing that was queued later. They last as long as this does."""
        if self.room.due:
            with self.machine.current():
                check_status(driver().cuEventSynchronize(self.room.event))
            self.room.due = False
        return self.room.values

    def __del__(self) -> None:
        self.home.append(self.room)


@dataclass
class Ready:
    """A plan on a device: the arguments' 8-byte slots, and launches that point to them."""

    slots: np.ndarray
    launches: list[tuple[tuple[Any, ...], Any, Launch]]


def argument_addresses(plan: Plan, slots: np.ndarray) -> Iterator[Any]:
    """For each launch of a plan the addresses of its slots. An int is read from a slot's first 4 bytes."""
    address = slots.ctypes.data
    for launch in plan.launches:
        count = len(launch.parameters)
        yield (ctypes.c_void_p * count)(*range(address, address + 8 * count, 8))
        address += 8 * count


def raw_stream(index: int) -> int:
    """The handle of torch's current stream; torch's own way to it takes thirty times as long."""
    quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(quick(index) if quick else torch.cuda.current_stream(index).cuda_stream)


@functools.cache
def driver() -> ctypes.CDLL:
    """libcuda. Raises MissingError."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise MissingError(
            f"the NVIDIA driver's library does not load: {error}", location="libcuda.so.1"
        ) from error


def check_status(status: int, action: str = "") -> None:
    """Raises GpuError with the driver's words if a call failed."""
    if status:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(text))
        reason = (text.value or b"unknown error").decode()
        raise GpuError(f"CUDA error {status}: {reason}", location=action or None, fix="backend='torch'")


@functools.cache
def primary_context(index: int) -> ctypes.c_void_p:
    """The context that torch uses on a device; held for the life of the process, as torch holds it."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check_status(driver().cuInit(0))
    check_status(driver().cuDeviceGet(ctypes.byref(device), index))
    check_status(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    return context


def find_nvrtc() -> Path | None:
    """NVRTC's library: $LAB_NVRTC, the one that this process has loaded, torch's own, the system's."""
    named = os.environ.get("LAB_NVRTC")
    if named:
        return Path(named)
    home = Path(torch.__file__).parent
    near = [*(home / "lib").glob("libnvrtc*"), *(home.parent / "nvidia").glob("*/lib/libnvrtc*")]
    paths = [path for path in (*loaded_libraries(), *sorted(near, reverse=True)) if is_nvrtc(path.name)]
    system = ctypes.util.find_library("nvrtc")
    return paths[0] if paths else Path(system) if system else None


def loaded_libraries() -> list[Path]:
    """Files that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [Path(fields[5]) for fields in (line.split(maxsplit=5) for line in lines) if len(fields) > 5]


def is_nvrtc(name: str) -> bool:
    """libnvrtc.so.12, or libnvrtc-08c4863f.so.10.2 as wheels rename it; not its builtins or .alt build."""
    return name.startswith("libnvrtc") and ".so" in name and "builtins" not in name and ".alt." not in name


@functools.cache
def nvrtc(path: Path) -> ctypes.CDLL:
    """NVRTC, and the library of built-in functions that it loads by name, wherever they are.

    Raises MissingError.
    """
    try:
        for builtins in sorted(path.parent.glob("libnvrtc-builtins*")):
            if ".alt." not in builtins.name:
                ctypes.CDLL(str(builtins))
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise MissingError(
            f"NVRTC does not load: {error}", location=path, fix=f"name another in LAB_NVRTC; {TORCH}"
        ) from error
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def version(library: ctypes.CDLL) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def architecture(library: ctypes.CDLL, capability: tuple[int, int]) -> str:
    """The target for a device: its own machine code, or PTX where NVRTC makes no machine code for it (before
    11.2).

    A device newer than NVRTC gets the newest PTX that NVRTC makes. Raises MissingError for a device that it
    has dropped.
    """
    capability_number = 10 * capability[0] + capability[1]
    if version(library) < (11, 2):
        newest = {9: 70, 10: 75}.get(version(library)[0], 80)
        return f"compute_{min(capability_number, newest)}"
    number = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(number))
    architectures = (ctypes.c_int * number.value)()
    library.nvrtcGetSupportedArchs(architectures)
    if capability_number in architectures:
        return f"sm_{capability_number}"
    older = [arch for arch in architectures if arch < capability_number]
    if not older:
        release = ".".join(map(str, version(library)))
        problem = (
            f"NVRTC {release} does not support sm_{capability_number}, only sm_{min(architectures)} and later"
        )
        raise MissingError(
            problem, fix=f"a torch for this GPU (image pascal), or an older NVRTC in LAB_NVRTC; {TORCH}"
        )
    return f"compute_{max(older)}"


def compiled(path: Path, source: str, target: str, defines: dict[str, object]) -> bytes:
    """Machine code for sm_*, PTX for compute_*, from the cache if it is there.

    Raises MissingError with NVRTC's words.
    """
    library = nvrtc(path)
    options = [
        f"--gpu-architecture={target}",
        "-std=c++11",
        *(f"-D{name}={value}" for name, value in defines.items()),
    ]
    parts = (source, *options, str(version(library)))
    name = "cuda-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    try:
        place = native_build.folder() / name
        if place.exists():
            return place.read_bytes()
    except LabError as error:
        log.info("compiled kernels are not kept: %s", error)
        return compile_now(library, path, source, options)
    image = compile_now(library, path, source, options)
    try:
        write_atomic(place, image)
    except LabError as error:
        log.info("compiled kernels are not kept: %s", error)
    return image


def compile_now(library: ctypes.CDLL, path: Path, source: str, options: list[str]) -> bytes:
    program = ctypes.c_void_p()
    status = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"semicrf.cu", 0, None, None)
    try:
        if not status:
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = library.nvrtcCompileProgram(program, len(options), words)
        if status:
            reason = library.nvrtcGetErrorString(status).decode()
            log_bytes = read_out(library, "ProgramLog", program) if program else b""
            text = log_bytes.decode(errors="replace").strip("\0")[-4000:]
            raise MissingError(
                f"NVRTC does not compile the kernels: {reason}\n{text}",
                location=f"{path} {' '.join(options)}",
                fix=f"name another NVRTC in LAB_NVRTC; {TORCH}",
            )
        return read_out(library, "PTX" if "compute_" in options[0] else "CUBIN", program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def read_out(library: ctypes.CDLL, product: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{product}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{product}")(program, text)
    return text.raw
