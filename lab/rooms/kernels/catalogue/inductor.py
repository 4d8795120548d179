"""Inductor's Triton kernels as a table: what they fused, where in the model, in which compiled region.

A kernel is (name, hash of its file). `compiled_kernels.csv` has one row per kernel, with the rule that gave
its operators (`ops_rule`) and its line (`source_rule`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from lab.core.words import plural
from lab.recordings.compiled import InductorKernel, fused_ops, is_inductor, name_of_category
from lab.rooms.kernels.catalogue.build import Catalogue

_COLUMNS = """
    kernel kernel_hash category count dur_sum_us time_share region graph fused_ops ops_rule
    source source_rule module block_sizes num_warps num_stages
"""
COLUMNS = tuple(_COLUMNS.split())


def compiled_kernels(catalogue: Catalogue) -> pd.DataFrame:
    """`compiled_kernels.csv`: one row per kernel of Inductor, most time first; empty if there are none."""
    total_us = sum(launch.dur_us for launch in catalogue.launches) or 1.0
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    start = 0
    for index, rank in enumerate(catalogue.ranks):
        lines = range(start, start + len(rank.rows))
        for line in lines if rank.compiled is not None else ():
            launch = catalogue.launches[line]
            if launch.kind == "kernel" and is_inductor(launch.name):
                groups.setdefault((launch.name, launch.kernel_hash), []).append((index, line))
        start = lines.stop
    modules = {(op.rank, op.op_id): op.module_path for op in catalogue.ops} if groups else {}
    rows = [_row(catalogue, key, members, modules, total_us) for key, members in groups.items()]
    rows.sort(key=lambda row: (-row["dur_sum_us"], row["kernel"]))
    table: pd.DataFrame = pd.DataFrame(rows, columns=list(COLUMNS))
    return table


def _row(
    catalogue: Catalogue,
    key: tuple[str, str],
    members: list[tuple[int, int]],
    modules: dict[tuple[int, int], str],
    total_us: float,
) -> dict[str, Any]:
    name, hash_ = key
    rank = catalogue.ranks[members[0][0]]
    compiled = rank.compiled
    assert compiled is not None
    launches = [catalogue.launches[line] for _, line in members]
    places = [(index, catalogue.launches[line].row) for index, line in members]

    def seen(column: str) -> list[str]:
        texts = [str(getattr(catalogue.ranks[index].compiled, column)[row]) for index, row in places]
        return [text for text, _ in Counter(filter(None, texts)).most_common()]

    origin = compiled.provenance.of(name, hash_)
    by_name = fused_ops(name, compiled.op_names)
    lines = origin.lines if origin else ()
    generated = seen("lines")
    kernel = compiled.kernels.get(hash_, InductorKernel(name))
    dur_us = sum(launch.dur_us for launch in launches)
    inside = [modules.get((launch.rank, launch.op_id), "") for launch in launches]
    return {
        "kernel": name,
        "kernel_hash": hash_,
        "category": name_of_category(name),
        "count": len(launches),
        "dur_sum_us": dur_us,
        "time_share": dur_us / total_us,
        "region": _first(seen("regions")),
        "graph": _first(seen("graphs")),
        "fused_ops": " ".join(origin.ops if origin else by_name),
        "ops_rule": origin.rule if origin else "name" if by_name else "none",
        "source": "; ".join(lines) or _first(generated),
        "source_rule": origin.rule if origin and lines else "stack" if generated else "none",
        "module": _first([path for path, _ in Counter(filter(None, inside)).most_common()]),
        "block_sizes": kernel.kwargs,
        "num_warps": kernel.num_warps if kernel.num_warps >= 0 else None,
        "num_stages": kernel.num_stages if kernel.num_stages >= 0 else None,
    }


def _first(texts: list[str]) -> str:
    """The most frequent text, and how many others there are."""
    further = f" (+{len(texts) - 1} more)" if len(texts) > 1 else ""
    return texts[0] + further if texts else ""


def sentences(table: pd.DataFrame) -> list[str]:
    """One sentence on how much of Inductor's kernels is explained; none without such kernels."""
    if not len(table):
        return []
    share = table["time_share"].sum()
    rules = Counter(table["ops_rule"])
    unplaced = int((table["source_rule"] == "none").sum())
    explained = ", ".join(f"{n} by {rule}" for rule, n in rules.most_common() if rule != "none")
    lost = f", {plural(rules['none'], 'kernel')} with no op known" if rules["none"] else ""
    without_line = (
        f"; no line of the model known for {plural(unplaced, 'kernel')} (TORCH_COMPILE_DEBUG=1 writes it: "
        "give that folder with --inductor)"
        if unplaced
        else ""
    )
    kernels = plural(len(table), "Inductor kernel")
    return [f"{kernels} ({share:.1%} of the time): fused ops {explained or 'unknown'}{lost}{without_line}"]
