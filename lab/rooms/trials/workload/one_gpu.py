"""The checks on the one GPU that this process sees: equal inputs, so equal GPUs must give equal bits.

Every check repeats the same work; inputs come from the device's own generator, which gives equal GPUs equal
numbers. Without a GPU the same checks run on the CPU in small sizes, and the row says so.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.errors import LabError
from lab.power.meters import NvmlMeter
from lab.rooms.trials.gpus import VISIT, Check, Visit
from lab.workload.rank import check_promised_gpus
from lab.workload.recorder.bits import Sums
from lab.workload.start import write_json

PATTERN_SHARE = 0.2  # of the free memory that the memory check writes and reads


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="lab.rooms.trials.workload.one_gpu")
    for name in ("repeats", "seed", "round", "order"):
        parser.add_argument(f"--{name}", required=True, type=int)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args(argv)
    check_promised_gpus()
    started = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    uuid, name = about(device)
    counted, no_counters = counters_of(uuid)
    checks = tuple(run(device, name, work, args) for name, work in CHECKS.items())
    visit = Visit(
        uuid,
        args.round,
        args.order,
        name,
        device.type,
        str(torch.__version__),
        platform.node(),
        started,
        checks,
        counted,
        no_counters,
    )
    write_json(args.out / VISIT, visit)


def about(device: torch.device) -> tuple[str, str]:
    """(UUID as nvidia-smi writes it or "", name)."""
    if device.type != "cuda":
        return "cpu", "cpu"
    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", ""))
    return (uuid if uuid.startswith(("GPU-", "MIG-")) or not uuid else f"GPU-{uuid}"), properties.name


def counters_of(uuid: str) -> tuple[dict[str, int], str]:
    """The GPU's counts of memory errors, or why there are none."""
    try:
        return counters(NvmlMeter(uuid)), ""
    except LabError as error:
        return {}, error.problem


def counters(meter: NvmlMeter) -> dict[str, int]:
    """Memory errors since the board was made, by NVML; what it does not report is absent, never 0."""
    nvml = meter.nvml
    remapped = meter.value("nvmlDeviceGetRemappedRows") or (None, None, None, None)  # Ampere and newer
    pages = meter.value("nvmlDeviceGetRetiredPages", nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
    kinds = {
        "correctable": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        "uncorrectable": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    }
    numbers = {
        f"ecc_{name}": meter.value("nvmlDeviceGetTotalEccErrors", kind, nvml.NVML_AGGREGATE_ECC)
        for name, kind in kinds.items()
    }
    names = ("rows_remapped_correctable", "rows_remapped_uncorrectable", "remap_pending", "remap_failed")
    numbers.update(zip(names, remapped, strict=True))
    numbers["pages_retired"] = None if pages is None else len(pages)
    return {name: int(number) for name, number in numbers.items() if number is not None}


Work = Callable[[torch.device, torch.Generator], Callable[[], Tensor]]


def run(device: torch.device, name: str, work: Work, args: argparse.Namespace) -> Check:
    """A check that fails is a row: an illegal address on one GPU is what is looked for."""
    try:
        repeat = work(device, torch.Generator(device).manual_seed(args.seed))
        sums, times = Sums(device), []
        repeat()  # warm: libraries choose and load their kernels
        for _ in range(args.repeats):
            began = _now(device)
            out = repeat()
            times.append((_now(device) - began) * 1e3)
            sums.add([out.contiguous()])
        return Check(name, tuple(sums.read()), tuple(round(time, 4) for time in times))
    except (RuntimeError, LabError) as error:
        return Check(name, error=f"{type(error).__name__}: {str(error).splitlines()[0][:300]}")


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def matmul(dtype: torch.dtype, size: int, *, tf32: bool = False) -> Work:
    def make(device: torch.device, generator: torch.Generator) -> Callable[[], Tensor]:
        n = size if device.type == "cuda" else 128
        a, b = (torch.randn(n, n, generator=generator, device=device).to(dtype) for _ in range(2))

        def repeat() -> Tensor:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            return a @ b

        return repeat

    return make


def elementwise(device: torch.device, generator: torch.Generator) -> Callable[[], Tensor]:
    """The special function units: exp, log, sin, rsqrt, and a softmax over rows."""
    n = 4096 if device.type == "cuda" else 64
    x = torch.rand(n, n, generator=generator, device=device) + 0.5

    def repeat() -> Tensor:
        return torch.softmax(x.exp().sin() + x.log() * x.rsqrt(), dim=-1)

    return repeat


def integers(device: torch.device, generator: torch.Generator) -> Callable[[], Tensor]:
    """Whole numbers through shifts and products: no rounding hides a bit."""
    n = 1 << (25 if device.type == "cuda" else 12)
    x = torch.randint(-(2**62), 2**62, (n,), generator=generator, device=device)

    def repeat() -> Tensor:
        y = x
        for shift in (7, 13, 31):
            y = (y ^ (y >> shift)) * 0x1E3779B97F4A7C15
        return y

    return repeat


def memory(device: torch.device, generator: torch.Generator) -> Callable[[], Tensor]:
    """A pattern written over a share of the free memory, read back, and its complement after it."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 20
    # A power of two, so that equal GPUs check equal sizes though their free memory differs a little.
    words = 1 << max(10, int(free * PATTERN_SHARE / 8).bit_length() - 1)
    place = torch.arange(words, dtype=torch.int64, device=device)
    flip = [0]

    def repeat() -> Tensor:
        flip[0] = -1 - flip[0]
        written = place ^ flip[0]
        wrong = torch.count_nonzero(
            (written ^ flip[0]) != torch.arange(words, dtype=torch.int64, device=device)
        )
        return wrong

    return repeat


def reduction(device: torch.device, generator: torch.Generator) -> Callable[[], Tensor]:
    n = 1 << (26 if device.type == "cuda" else 14)
    x = torch.randn(n, generator=generator, device=device)
    return lambda: torch.stack([x.sum(), x.square().sum(), x.amax()])


CHECKS: dict[str, Any] = {
    "matmul float32": matmul(torch.float32, 4096),
    "matmul tf32": matmul(torch.float32, 8192, tf32=True),
    "matmul bfloat16": matmul(torch.bfloat16, 8192),
    "matmul float16": matmul(torch.float16, 8192),
    "matmul float64": matmul(torch.float64, 2048),
    "elementwise": elementwise,
    "integers": integers,
    "reduction": reduction,
    "memory": memory,
}


if __name__ == "__main__":
    main()
