"""What a GEMM's variance is due to: causes put in by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.rooms.sweep.gemm.shares import shares
from tests.rooms.sweep.gemm.made import instances


def test_shares_go_to_the_cause_that_was_put_in():
    random = np.random.default_rng(3)
    n = 4000
    beside, cold = random.random(n) < 0.5, random.random(n) < 0.5
    other, rank = random.random(n) < 0.5, random.integers(0, 4, n)
    dur_us = 100 + 8 * beside + 4 * cold + 4 * other + 2 * (rank == 0) + random.normal(0, 2, n)
    found = shares(instances(dur_us, beside, rank=rank, other_share=other * 0.5, cold=cold))
    parts = {"overlap": 16, "cold_start": 4, "other_kernels": 4, "rank": 0.75, "unexplained": 4}
    whole = sum(parts.values())
    for name, part in parts.items():
        assert found[f"{name}_share"] == pytest.approx(part / whole, abs=0.02), name
    assert math.isnan(found["clocks_share"])
    assert found["verdict"].split(", ")[0].endswith("a collective beside it")
