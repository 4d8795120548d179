"""Holm's correction: the plain definition, and never weaker than Bonferroni's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.stats.effects import holm

P_VALUES = st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), max_size=8)


def test_a_published_example():
    corrected = holm([0.0098, 0.0324, 0.0163, 0.2, 0.0494, 0.0020, 0.6])
    assert corrected == pytest.approx([0.0588, 0.1296, 0.0815, 0.4, 0.1482, 0.0140, 0.6], abs=1e-9)
    assert holm([]).tolist() == []


@given(P_VALUES)
def test_it_is_the_plain_definition(p_values: list[float]) -> None:
    known = sorted((p, i) for i, p in enumerate(p_values) if not np.isnan(p))
    reached, expected = 0.0, [float("nan")] * len(p_values)
    for place, (p, i) in enumerate(known):
        reached = max(reached, (len(known) - place) * p)
        expected[i] = min(1.0, reached)
    assert np.allclose(holm(p_values), expected, equal_nan=True)


@given(P_VALUES)
def test_what_bonferroni_rejects_is_rejected(p_values: list[float]) -> None:
    given = np.array(p_values, dtype=float)
    known = ~np.isnan(given)
    bonferroni = given[known] * known.sum()
    assert (holm(given)[known] <= np.minimum(bonferroni, 1.0) + 1e-15).all()
