"""The learning-rate schedule."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from lab.rooms.sweep.workload.trainer import lr_factor  # noqa: E402

pytestmark = pytest.mark.torch


def test_the_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    rates = [lr_factor(step, warmup_steps=10, total_steps=110) for step in range(130)]
    assert rates[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert rates[10] == 1.0 and rates[60] == pytest.approx(0.5)
    assert rates[110:] == pytest.approx([0.0] * 20, abs=1e-12)
    assert rates[10:] == sorted(rates[10:], reverse=True)
