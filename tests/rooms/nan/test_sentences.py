"""What the page says first."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")
from lab.rooms.nan.sentences import sentences
from tests.rooms.nan.folders import tables
from tests.rooms.nan.made import birth, call, result


def test_equals_share_a_rank_and_that_is_said(tmp_path):
    found = tables(tmp_path / "r", {name: result(name) for name in ("baseline", "bfloat16", "eager")})
    assert list(found.experiments["rank"]) == [1, 1, 1]
    assert any("share the first rank" in sentence for sentence in sentences(found))


def test_equals_at_the_logits_are_not_called_equal_at_zero(tmp_path):
    bad = {
        name: result(name, applied="applied", first=birth(), bad_steps=(0,)) for name in ("baseline", "eager")
    }
    text = " ".join(sentences(tables(tmp_path / "r", bad)))
    assert "bad numbers get as far in each" in text and "improved" not in text
    clean = {name: result(name, applied="applied") for name in ("baseline", "eager")}
    assert "zero cannot be improved" in " ".join(sentences(tables(tmp_path / "s", clean)))


def test_the_story_names_birth_cause_and_what_keeps_it_away(tmp_path):
    module = "model.layers.2.self_attn"
    calls = [
        call(0, f"{module}.q_proj", "out", absmax=2000.0),
        call(1, f"{module}.k_proj", "out", absmax=1500.0),
        call(2, f"{module}.v_proj", "out"),
        call(3, f"{module}.o_proj", "in", nan=7),
    ]
    bad = result("eager", applied="applied", first=birth(), bad_steps=(0, 1), _calls=calls)
    text = " ".join(sentences(tables(tmp_path / "r", {"baseline": result("baseline"), "eager": bad})))
    assert "NaN or infinity reaches the logits in eager" in text
    assert (
        "after v_proj, before o_proj" in text and "overflow of half in the attention scores (likely" in text
    )
    assert "sdpa cures it" in text
