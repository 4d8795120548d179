"""Device functions whose entries nixnan wrote once more under their own names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lab.rooms.nan.nixnan.categories import category

Entry = tuple[str, int | None]  # SASS, operand


def twins_of(sites: Iterable[tuple[str, str, int | None]]) -> dict[str, str]:
    """Device function -> the kernel whose entries it repeats. Sites are (function, SASS, operand), each once.

    nixnan writes an instrumented device function's code under its own name and under the kernel's, entry by
    entry. Only names that are device functions' are merged, and only where every entry is another's too; of
    several such kernels, the one with the fewest other entries.
    """
    keys = list(sites)
    size = Counter([function for function, _, _ in keys])
    entries: dict[str, set[Entry]] = {name: set() for name in size if category(name) == "device function"}
    if not entries:
        return {}
    for function, sass, operand in keys:
        if function in entries:
            entries[function].add((sass, operand))
    holders: dict[Entry, set[str]] = {entry: set() for of in entries.values() for entry in of}
    for function, sass, operand in keys:
        if function not in entries and (sass, operand) in holders:
            holders[sass, operand].add(function)
    kernel_of = {}
    for name in entries:
        same = set[str].intersection(*(holders[entry] for entry in entries[name]))
        if same:
            kernel_of[name] = min(same, key=lambda kernel: (size[kernel], kernel))
    return kernel_of
