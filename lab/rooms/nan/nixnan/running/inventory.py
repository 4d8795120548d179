"""Which kernels a program launches, by nixnan's own names, before any of them is instrumented.

Instrumented code is a thousand times slower. A pass with LOG_KERNELS only lists kernels; `--only-kernel` then
takes the few of a family in which a NaN is suspected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lab.rooms.nan.nixnan.categories import category, label
from lab.rooms.nan.nixnan.grammar import LOGGED, RUNNING, tidy

LISTED = "kernels.log"  # what LOG_KERNELS names
SUSPECTS = ("attention", "softmax", "norm")  # where NaN are usually born in a Transformer


def launched(files: Iterable[Path]) -> Counter[str]:
    """Short name -> lines that name it, as nixnan's lists want it: cut at the first `<` or `(`."""
    launches: Counter[str] = Counter()
    for path in files:
        if not path.is_file():
            continue
        with path.open("rb") as file:
            for raw in file:
                line = tidy(raw.rstrip(b"\n")).decode(errors="replace")
                match = LOGGED.fullmatch(line) or RUNNING.fullmatch(line)
                if match:
                    launches[short_name(match[1])] += 1
    return launches


def short_name(full: str) -> str:
    """`void f<int>(float*)` -> `void f`; blanks at the end stay away."""
    cut = min((at for at in (full.find("<"), full.find("(")) if at > 0), default=len(full))
    return full[:cut].rstrip()


def advice(kernels: Counter[str]) -> list[str]:
    """What was launched by family, and the options that watch only one."""
    if not kernels:
        return ["nixnan listed no kernel: nothing can be said of what the program launches."]
    families: dict[str, list[str]] = {}
    for name in sorted(kernels):
        families.setdefault(category(name), []).append(name)
    lines = [f"{len(kernels)} kernels by nixnan's short names, in {len(families)} families:"]
    for word in sorted(families, key=lambda word: (word not in SUSPECTS, word)):
        options = " ".join(f"--only-kernel {quoted(name)}" for name in families[word])
        lines.append(f"  {label(word)} ({len(families[word])}): {options}")
    return [*lines, "Launches that nixnan does not intercept (cuLaunchKernelEx, graphs) are not among them."]


def quoted(name: str) -> str:
    return "'" + name.replace("'", "'\\''") + "'"
