"""Device functions whose entries nixnan wrote once more under their own names."""

from __future__ import annotations

from collections.abc import Iterable

from lab.rooms.nan.nixnan.categories import category

Entry = tuple[str, int | None]  # SASS, operand


def twins_of(sites: Iterable[tuple[str, str, int | None]]) -> dict[str, str]:
    """Device function -> the kernel whose entries it repeats. Sites are (function, SASS, operand).

    nixnan writes an instrumented device function's code under its own name and under the kernel's, entry by
    entry. Only names that are device functions' are merged, and only where every entry is another's too; of
    several such kernels, the one with the fewest other entries.
    """
    entries: dict[str, set[Entry]] = {}
    for function, sass, operand in sites:
        of = entries.get(function)
        if of is None:
            of = entries[function] = set()
        of.add((sass, operand))
    device = [name for name in entries if category(name) == "device function"]
    holders: dict[Entry, set[str]] = {entry: set() for name in device for entry in entries[name]}
    for name in entries.keys() - set(device):
        for entry in entries[name] & holders.keys():
            holders[entry].add(name)
    found = {}
    for name in device:
        same = set[str].intersection(*(holders[entry] for entry in entries[name]))
        if same:
            found[name] = min(same, key=lambda kernel: (len(entries[kernel]), kernel))
    return found
