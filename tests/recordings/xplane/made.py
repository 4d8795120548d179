"""A writer of XPlane files by field numbers, so that reader and writer share no code."""

from __future__ import annotations

import struct
from pathlib import Path

Value = int | float | str


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


class Plane:
    """One plane; texts of stats that begin with `@` are interned as names of stats, as the profiler does."""

    def __init__(self, name: str, **stats: Value) -> None:
        self._name, self._lines = name, list[tuple[int, str, int, list[bytes]]]()
        self._events, self._stats = dict[str, int](), dict[str, int]()
        self._own = [self._stat(key, value) for key, value in stats.items()]

    def line(self, number: int, name: str, start_ns: int = 0) -> Plane:
        self._lines.append((number, name, start_ns, []))
        return self

    def event(self, name: str, start_ns: float, dur_ns: float, **stats: Value) -> Plane:
        """An event of the last line; start_ns counts from the line's own start."""
        number = self._events.setdefault(name, len(self._events) + 1)
        body = field(1, number) + field(2, round(start_ns * 1000)) + field(3, round(dur_ns * 1000))
        self._lines[-1][3].append(body + b"".join(field(4, self._stat(k, v)) for k, v in stats.items()))
        return self

    def summed(self, name: str, occurrences: int, dur_ns: int) -> Plane:
        """An event that sums many, as TPUs write them."""
        number = self._events.setdefault(name, len(self._events) + 1)
        self._lines[-1][3].append(field(1, number) + field(5, occurrences) + field(3, dur_ns * 1000))
        return self

    def _stat(self, key: str, value: Value) -> bytes:
        body = field(1, self._name_of(key))
        if isinstance(value, float):
            return body + varint(2 << 3 | 1) + struct.pack("<d", value)
        if isinstance(value, int):
            return body + field(4, value)
        if value.startswith("@"):
            return body + field(7, self._name_of(value[1:]))
        return body + field(5, value.encode())

    def _name_of(self, text: str) -> int:
        return self._stats.setdefault(text, len(self._stats) + 1)

    def data(self) -> bytes:
        lines = (
            field(3, field(1, number) + field(2, name.encode()) + field(3, start_ns) + _all(4, events))
            for number, name, start_ns, events in self._lines
        )
        names = (
            _all(kind, map(_entry, known.items())) for kind, known in ((4, self._events), (5, self._stats))
        )
        return field(2, self._name.encode()) + b"".join((*lines, *names)) + _all(6, self._own)


def _entry(named: tuple[str, int]) -> bytes:
    return field(1, named[1]) + field(2, field(1, named[1]) + field(2, named[0].encode()))


def _all(number: int, bodies: object) -> bytes:
    return b"".join(field(number, body) for body in bodies)  # type: ignore[attr-defined]


def space(*planes: Plane, errors: tuple[str, ...] = (), warnings: tuple[str, ...] = ()) -> bytes:
    words = (*((2, text) for text in errors), *((3, text) for text in warnings), (4, "node7"))
    return _all(1, (plane.data() for plane in planes)) + b"".join(field(n, t.encode()) for n, t in words)


def training(num_steps: int = 3) -> tuple[Plane, Plane]:
    """The GPU and the host of a program: per step a copy, two kernels of `jit_step` and a fill.

    A step begins every 100,000 ns; its calls stand on thread 21, its rows on stream 14 of GPU 0.
    """
    gpu = Plane("/device:GPU:0", device_vendor="Nvidia", gpu_device_name="NVIDIA H200", core_count=132)
    host = Plane("/host:CPU", process_id=77).line(21, "python")
    gpu.line(14, "Stream #14(MemcpyH2D,Compute,Memset)")
    for step in range(num_steps):
        begin, corr = 100_000 * step, 10 * step + 1
        host.event("train", begin, 60_000, _r=1, step_num=step).event("forward", begin + 5_000, 50_000)
        host.event("$model.py:3 call", begin + 5_000, 50_000)
        for number, call in enumerate(
            ("cuMemcpyHtoDAsync_v2", "cuLaunchKernel", "cuLaunchKernel", "cuMemsetD32Async")
        ):
            start_ns = begin + 10_000 * (number + 1)
            host.event(call, start_ns, 2_000, device_id=0, correlation_id=corr + number)
        details = "@regs:40 static_shared:64 dynamic_shared:512 grid:8,2,1 block:256,1,1 occ_pct:50"
        copy = "@kind_src:pageable kind_dst:device size:4096 dest:0 async:1"
        hlo = {"hlo_module": "@jit_step", "context_id": "$$1"}
        gpu.event("MemcpyH2D", begin + 13_000, 5_000, correlation_id=corr, memcpy_details=copy)
        gpu.event(
            "fusion_kernel",
            begin + 23_000,
            7_000.5,
            correlation_id=corr + 1,
            hlo_op="@fusion.3",
            kernel_details=details,
            **hlo,
        )
        gpu.event(
            "gemm_kernel",
            begin + 33_000,
            9_000,
            correlation_id=corr + 2,
            hlo_op="@dot.1",
            kernel_details=details,
            **hlo,
        )
        fill = "@kind:device num_bytes:128 async:1"
        gpu.event("Memset", begin + 43_000, 1_000, correlation_id=corr + 3, Memset_details=fill)
    return gpu, host


def write(path: Path, *planes: Plane, **words: tuple[str, ...]) -> Path:
    path.write_bytes(space(*planes, **words))
    return path
