"""The docs' quickstart trains as it stands, and the short import brings torch, numpy and msgspec alone."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.test_walls import all_modules_after  # noqa: E402

pytestmark = pytest.mark.torch
PAGE = Path(__file__).parents[3] / "docs" / "semicrf.md"
BROUGHT = {"lab", "torch", "numpy", "msgspec"}


def quickstart():
    (block,) = re.findall(r"## Quickstart.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return block


def test_the_quickstart_of_15_lines_trains(capsys):
    assert len([line for line in quickstart().splitlines() if line.strip()]) <= 15
    torch.manual_seed(0)
    scope = {}
    exec(quickstart(), scope)  # noqa: S102
    loss, segments = capsys.readouterr().out.split(" ", 1)
    assert float(loss) < 0.2
    labels, length = scope["labels"], int(scope["lengths"][0])
    frames = [label for start, end, label in ast.literal_eval(segments) for _ in range(start, end)]
    right = sum(a == b for a, b in zip(frames, labels[0].tolist(), strict=True))
    assert len(frames) == length and right > 0.9 * length


def test_the_short_import_brings_torch_numpy_and_msgspec_alone():
    with_torch = {name.split(".")[0] for name in all_modules_after("import torch, numpy, msgspec")}
    code = "from lab import semicrf; semicrf.SemiCRF, semicrf.SegmentDistribution, semicrf.lint_objective"
    names = {name.split(".")[0] for name in all_modules_after(code)}
    assert names - with_torch - set(sys.stdlib_module_names) <= BROUGHT
