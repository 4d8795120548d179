"""The table of layers: outputs of all modules, summed by layer and phase."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from lab.rooms.nan.columns import LAYERS
from lab.rooms.nan.counts import LARGEST
from lab.rooms.nan.evidence import Evidence

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)(?:\.|$)")
COUNTED = ("nan", "posinf", "neginf", "subnormal")
ReadTable = Callable[[Evidence, str], "pd.DataFrame | None"]


def layers_table(evidence: Sequence[Evidence], read: ReadTable) -> pd.DataFrame:
    """Headroom is the largest magnitude as a share of the type's largest number."""
    parts = []
    for experiment in evidence:
        modules = _modules(experiment, read)
        if modules is not None and not modules.empty:
            parts.append(_by_layer(modules).assign(experiment=experiment.label))
    table: pd.DataFrame = pd.DataFrame([], columns=LAYERS)
    if parts:
        table = pd.concat(parts)[LAYERS].reset_index(drop=True)
    return table


def layer_of(module: str) -> str:
    """`layer 12` for a module of that layer, else the module's last name."""
    match = LAYER.search(module)
    return f"layer {match[1]}" if match else module.rsplit(".", 1)[-1] or "(the model)"


def _by_layer(modules: pd.DataFrame) -> pd.DataFrame:
    out = modules[modules["side"] == "out"].assign(layer=modules["module"].map(layer_of))
    limit = out["dtype"].map(LARGEST).astype(float)
    out["headroom"] = (out["absmax"] / limit).where(out["absmax"] > 0)  # unknown where nothing is finite
    for kind in COUNTED:
        out[kind] = out[kind].clip(lower=0)
    aggregations: dict[str, Any] = {
        **dict.fromkeys(COUNTED, "sum"),
        "absmax": "max",
        "numel": "sum",
        "dtype": "first",
    }
    grouped = out.groupby(["layer", "phase"], sort=False)
    table: pd.DataFrame = grouped.agg(
        {**aggregations, "headroom": "max", "first_bad_step": _first_bad}
    ).reset_index()
    return table


def _modules(experiment: Evidence, read: ReadTable) -> pd.DataFrame | None:
    published = (experiment.result or {}).get("published")
    if not published:
        return read(experiment, "modules.csv") if experiment.watch else None
    rows = [{"module": name, "nan": nans, "posinf": infs} for name, (nans, infs) in published["rows"].items()]
    table: pd.DataFrame = pd.DataFrame(rows, columns=["module", "nan", "posinf"]).assign(
        side="out",
        phase="last call",
        dtype="",
        numel=0,
        neginf=0,
        subnormal=0,
        absmax=float("nan"),
        first_bad_step=-1,
    )
    return table


def _first_bad(steps: pd.Series) -> int:
    bad = steps[steps >= 0]
    return int(bad.min()) if len(bad) else -1
