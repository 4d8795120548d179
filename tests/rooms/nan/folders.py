"""Runs and published folders made for a test, and the tables of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("matplotlib")
from lab.rooms.nan.analyze import analyze
from lab.rooms.nan.gather import gather
from tests.rooms.nan.made import run_of

LINE = (
    "#nixnan: error [{kinds}] detected in operand 0 of instruction FADD R{n}, R1, R2 ; "
    "in function void kernel of type f32\n"
)


def tables(root: Path, results, failed=None):
    run = run_of(root, results, failed)
    return analyze(gather([root], [run], lambda _: None))


def rows(found) -> dict[str, pd.Series]:
    return {row["experiment"]: row for _, row in found.experiments.iterrows()}


def log(folder: Path, name: str, lines: int, kinds: str = "NaN", report: bool = True) -> None:
    """A small log of nixnan whose lines equal its report."""
    words = {"NaN": lines if "NaN" in kinds else 0, "Infinity": lines if "infinity" in kinds else 0}
    content = [
        "#nixnan: Initializing GPU context...\n",
        *(LINE.format(kinds=kinds, n=n) for n in range(lines)),
    ]
    if report:
        content += ["#nixnan: ------------ nixnan Report -----------\n", "#nixnan: --- FP32 Operations ---\n"]
        content += [
            f"#nixnan: {kind}: {words.get(kind, 0)} (7 repeats)\n"
            for kind in ("NaN", "Infinity", "-Infinity", "Subnormal")
        ]
        content += ["#nixnan: Division by 0: 0 (0 repeats)\n", "#nixnan: Finalizing GPU context...\n"]
    (folder / f"claude_{name}.nixnan").write_text("".join(content))


def published(
    folder: Path, name: str, nans: int = 0, text: str = "the same answer", gz: bool = False
) -> None:
    content = {
        "timestamp": "t",
        "experiment": name,
        "config": {},
        "model_output": text,
        "statistics": {
            "total_nans": nans,
            "total_infs": 0,
            "layers_with_nans": 0,
            "layers_with_infs": 0,
            "problematic_layers": {},
            "all_layer_stats": {
                "model.layers.0.mlp": {"nans": nans, "infs": 0},
                "lm_head": {"nans": 0, "infs": 0},
            },
        },
    }
    data = json.dumps(content).encode()
    (folder / f"claude_{name}.json{'.gz' if gz else ''}").write_bytes(gzip.compress(data) if gz else data)
