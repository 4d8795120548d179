"""The cause of the first bad number, from the magnitudes around it."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")
from tests.rooms.nan.folders import tables
from tests.rooms.nan.made import birth, call, result


def test_scores_that_fit_point_to_a_masked_row_with_less_confidence(tmp_path):
    module = "model.layers.2.self_attn"
    calls = [
        call(0, f"{module}.q_proj", "out", absmax=3.0),
        call(1, f"{module}.k_proj", "out", absmax=3.0),
        call(2, f"{module}.o_proj", "in", nan=7),
    ]
    found = tables(
        tmp_path / "r",
        {"eager": result("eager", applied="applied", first=birth(), bad_steps=(0,), _calls=calls)},
    )
    assert found.causes["eager"][:2] == ("a fully masked row in the softmax: (-inf) - (-inf)", "possible")


def test_a_product_that_the_type_cannot_hold_is_an_overflow(tmp_path):
    mlp = "model.layers.1.mlp"
    calls = [
        call(0, f"{mlp}.act_fn", "out", absmax=200.0),
        call(1, f"{mlp}.up_proj", "out", absmax=20000.0),
        call(2, f"{mlp}.down_proj", "in", posinf=3),
    ]
    first = {**birth(mlp), "after": f"{mlp}.up_proj", "before": f"{mlp}.down_proj"}
    found = tables(
        tmp_path / "r", {"baseline": result("baseline", first=first, bad_steps=(0,), _calls=calls)}
    )
    assert found.causes["baseline"][0] == "overflow of half in the product of act_fn and up_proj"
