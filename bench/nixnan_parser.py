"""nixnan logs: lab against a straightforward loop of `re` over the lines.

Bars: 6x on repeated lines, 0.6x on lines that are all different (real logs have some thousand sites), and at
most 300 MB of memory, whatever the size. Logs of 1 GB (or LAB_BENCH_MB) are made from the lines of real logs
(LAB_BENCH_NIXNAN, a folder of *.nixnan[.gz]) or, without one, from generated lines of the same shapes; they
are deleted afterwards.
"""

from __future__ import annotations

import gzip
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.measure import Cost, cost, side_by_side
from bench.table import Row, at_least, measured

OURS = "import sys; from lab.rooms.nan.nixnan.reading.parse import parse; parse(sys.argv[1])"
PEER = r"""
    import re, sys
    from collections import Counter
    KIND = r"(?:NaN|-?infinity|subnormal|div0)"
    ERROR = re.compile(
        rf"^#nixnan: error \[({KIND}(?:,{KIND})*)\] detected in (?:operand (\d+) of )?"
        r"instruction (.+?) *; in function "
        r"(.*?)(?: at (?:line (\d+)|(\S.*?):(\d+)))? of type (f16|bf16|f32|f64|unknown)$")
    sites, counts, functions = Counter(), Counter(), Counter()
    with open(sys.argv[1], errors="replace") as file:
        for line in file:
            if found := ERROR.match(line):
                kinds, operand, sass, function, _, _, _, kind_of_number = found.groups()
                sites[function, sass, operand] += 1
                functions[function] += 1
                for kind in kinds.split(","):
                    counts[kind_of_number, kind] += 1
"""
MADE = (
    "#nixnan: error [NaN] detected in operand {n} of instruction "
    "HMMA.16816.F32 R{a}, R{b}.reuse, R{c}, R{a} ; in function "
    "void pytorch_flash::flash_fwd_kernel of type f32",
    "#nixnan: error [NaN,subnormal] detected in operand {n} of instruction "
    "FFMA R{a}, R{b}, c[0x0][0x238], -R{c} ; in function "
    "void cutlass::Kernel2 of type f32",
    "#nixnan: error [-infinity] detected in operand {n} of instruction "
    "FMUL.FTZ R{a}, R{b}, R{c} ; in function "
    "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn of type f32",
)
_REGISTER, _OPERAND = re.compile(r"\bR\d+"), re.compile(r"operand \d")
_FUNCTION = re.compile(r"(in function .*)( of type)")
GROWTH = (1, 4, 16)


def main() -> None:
    megabytes = int(os.environ.get("LAB_BENCH_MB", "1000"))
    lines = real_lines()
    with tempfile.TemporaryDirectory() as name:
        for what, change, bar in (("repeated", None, 6), ("varied", varied, 0.6)):
            path = made(Path(name) / f"{what}.nixnan", lines, megabytes, change)
            ours, peer = side_by_side(3, partial(cost, OURS, str(path)), partial(cost, PEER, str(path)))
            print(
                f"{what} lines, {megabytes} MB: lab {_of(ours, megabytes)}; re loop {_of(peer, megabytes)}: "
                f"{peer.cpu_s / ours.cpu_s:.1f}x (bar {bar}x)"
            )
            limit, met = at_least(peer.cpu_s / ours.cpu_s, bar)
            measured(
                Row(
                    f"nixnan logs, {what} lines",
                    size=f"{megabytes} MB",
                    cost=f"{ours.cpu_s:.2f} CPU s",
                    memory_mb=ours.peak_mb,
                    peer=f"re loop {_of(peer, megabytes)}",
                    ratio=peer.cpu_s / ours.cpu_s,
                    limit=limit,
                    met=met,
                )
            )
            path.unlink()
        growth(Path(name), lines, megabytes / GROWTH[-1])


def growth(folder: Path, lines: list[str], megabytes: float) -> None:
    """Time and memory of lab as a varied log grows."""
    shown = []
    for times in GROWTH:
        path = made(folder / "growth.nixnan", lines, megabytes * times, varied)
        shown.append(_of(cost(OURS, str(path)), megabytes * times))
    print(f"growth {', '.join(f'{times}x' for times in GROWTH)}: {'; '.join(shown)}")


def real_lines() -> list[str]:
    folder = os.environ.get("LAB_BENCH_NIXNAN")
    if not folder:
        draw = random.Random(1)
        return [
            one.format(n=draw.randrange(4), a=draw.randrange(64), b=draw.randrange(64), c=draw.randrange(64))
            for one in MADE
            for _ in range(5000)
        ]
    return [
        line
        for path in sorted(Path(folder).glob("*.nixnan*"))
        for line in _text(path).splitlines()
        if "error [" in line
    ]


def _text(path: Path) -> str:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return file.read()


def varied(line: str, draw: random.Random) -> str:
    """The line with other registers, another operand and another name: hardly two are the same."""
    line = _REGISTER.sub(lambda _: f"R{draw.randrange(256)}", line)
    line = _OPERAND.sub(f"operand {draw.randrange(4)}", line)
    return _FUNCTION.sub(rf"\g<1>_{draw.randrange(5000)}\2", line)


def made(
    path: Path, lines: list[str], megabytes: float, change: Callable[[str, random.Random], str] | None
) -> Path:
    draw, size = random.Random(2025), 0
    with path.open("w") as file:
        file.write("#nixnan: Initializing GPU context...\n")
        while size < megabytes * 1e6:
            size += file.write("\n".join(_drawn(lines, change, draw)) + "\n")
    return path


def _drawn(
    lines: list[str], change: Callable[[str, random.Random], str] | None, draw: random.Random
) -> Iterator[str]:
    chosen = draw.choices(lines, k=10_000)
    return (change(line, draw) for line in chosen) if change else iter(chosen)


def _of(one: Cost, megabytes: float) -> str:
    return f"{one.cpu_s:.1f} s CPU, {megabytes / one.cpu_s:.0f} MB/s, {one.peak_mb:.0f} MB"
