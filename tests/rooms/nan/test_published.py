"""The published layout, whole and broken."""

from __future__ import annotations

import pandas as pd
import pytest

pytest.importorskip("matplotlib")
from lab.rooms.nan.analyze import analyze
from lab.rooms.nan.gather import experiment_of, gather, is_published
from tests.rooms.nan.folders import log, published, rows


def test_in_the_published_layout_the_crashed_run_does_not_win_though_it_has_fewest_lines(tmp_path):
    for name in ("baseline_4bit_fp16", "bfloat16_compute", "layernorm_eps_0_001"):
        published(tmp_path, name, gz=name.startswith("b"))
    for name, lines in {"baseline": 9, "bfloat16": 5, "attention_clip": 1}.items():
        log(tmp_path, name, lines)
    assert is_published(tmp_path)
    found = analyze(gather([tmp_path], [None], lambda _: None))
    by = rows(found)
    assert pd.isna(by["attention_clip"]["rank"]) and by["attention_clip"]["status"] == "failed"
    assert [by[name]["rank"] for name in ("baseline", "bfloat16", "layernorm_eps")] == [1, 1, 1]
    assert by["baseline"]["verdict"] == "masked-intermediate" and by["baseline"]["sass_nan_lines"] == 9


def test_both_levels_of_an_experiment_are_joined_though_each_has_its_own_name():
    assert experiment_of("baseline_4bit_fp16") == experiment_of("baseline") == "baseline"
    assert experiment_of("8bit_quantization") == "8bit" and experiment_of("baselines") is None


def test_a_broken_result_is_a_row_with_its_reason_and_the_rest_is_analysed(tmp_path):
    published(tmp_path, "baseline")
    (tmp_path / "claude_eager.json").write_text("{")
    (tmp_path / "claude_bfloat16.json.gz").write_bytes(b"\x1f\x8b broken")
    by = rows(analyze(gather([tmp_path], [None], lambda _: None)))
    assert by["eager"]["status"] == by["bfloat16"]["status"] == "broken" and by["baseline"]["rank"] == 1


REFERENCE = {  # by COLUMNS
    "baseline": (10232, 3638, 7035, 2092, 28737328, 4943, 213324749, 2650, 571300636),
    "bfloat16": (9614, 2154, 5816, 1272, 11572324, 4544, 104598986, 1098, 11334686),
    "eager": (2816, 644, 1800, 464, 22750512, 1336, 191306408, 780, 570571076),
    "attention_clip": (1073, 881, 602, 144, 1360, 458, 4623, 355, 1405369),
}
COLUMNS = [
    "sass_lines",
    "sass_sites",
    "sass_nan_lines",
    "half_nan_unique",
    "half_nan_repeats",
    "float_nan_unique",
    "float_nan_repeats",
    "half_subnormal_unique",
    "half_subnormal_repeats",
]


@pytest.mark.data
def test_the_published_experiments_give_the_reference_table(shared_data):
    found = analyze(gather([shared_data / "nixnan"], [None], lambda _: None))
    by = rows(found)
    for name, expected in REFERENCE.items():
        assert tuple(by[name][COLUMNS]) == expected, name
    assert (found.layers[["nan", "posinf"]].to_numpy() == 0).all() and (
        found.experiments["memory_nan_lines"].dropna() == 0
    ).all()
    assert (
        pd.isna(by["attention_clip"]["rank"])
        and by["layernorm_eps"]["same_text"] == by["eager"]["same_text"] == "yes"
    )
