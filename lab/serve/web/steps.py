"""Recordings of a run by the step that they are of, as far as their names say."""

from __future__ import annotations


def folders_of_several(names: set[str]) -> set[str]:
    """The folders that hold more than one of these files."""
    folders = [name.rsplit("/", 1)[0] for name in names if "/" in name]
    return {folder for folder in folders if folders.count(folder) > 1}


def by_step(names: list[str]) -> list[tuple[str, list[str]]]:
    """Recordings of one step together: the folder above the ranks, and its files."""
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split("/")
        at = next(
            (at for at, part in enumerate(parts) if part.startswith("rank") or part == "torch_profiler"),
            len(parts) - 1,
        )
        found.setdefault("/".join(parts[:at]) or ".", []).append(name)
    return list(found.items())


def of_ranks(names: list[str]) -> bool:
    """Whether recordings of one folder are named as the ranks of one job."""
    return len(names) > 1 and all(any(part.startswith("rank") for part in name.split("/")) for name in names)
