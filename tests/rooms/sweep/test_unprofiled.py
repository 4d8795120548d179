"""Steps without the profiler are what a sweep compares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.rooms.sweep.layout import ConfigDir
from lab.rooms.sweep.unprofiled import left_out, sentences, unprofiled_table


def run(root: Path, channels: int, ms: list[float], *, profiled: list[float], repeat: int = 1) -> ConfigDir:
    """A run whose rank 1 is 1 ms slower in every step; the profiled steps come last."""
    folder = root / f"{channels}-{repeat}"
    folder.mkdir(parents=True)
    phases = ["none"] * len(ms) + ["record"] * len(profiled)
    for rank in (0, 1):
        lines = [
            {
                "global_step": at + 1,
                "world_size": 2,
                "profile": {"total_ms": total + rank, "markers": [{"name": f"profiler_{phase}"}]},
            }
            for at, (total, phase) in enumerate(zip([*ms, *profiled], phases, strict=True))
        ]
        text = "\n".join(json.dumps(line) for line in lines)
        (folder / f"rank_{rank:02d}_metrics.jsonl").write_text(text + '\n{"global_step": 99, "prof')
    return ConfigDir(folder, 256, channels, repeat, (), (), ())


def test_the_outcome_is_the_slowest_ranks_median_step_after_warm_up(tmp_path):
    config = run(tmp_path, 28, [900, 80, 60, 40, 41, 42, 40, 41, 42], profiled=[60, 62])
    row = unprofiled_table([config]).iloc[0]
    assert (row["unprofiled_steps"], row["unprofiled_ms"]) == (6, 42.0)
    assert (row["profiled_steps"], row["profiled_ms"]) == (2, 62.0)
    assert row["profile_cost"] == pytest.approx(62 / 42) and row["drift"] == pytest.approx(0.0, abs=0.03)


def test_what_the_profile_costs_is_told(tmp_path):
    configs = [run(tmp_path, channels, [500, 50, 50, *[40.0] * 9], profiled=[70]) for channels in (28, 42)]
    assert sentences(unprofiled_table(configs)) == [
        "The profile makes a step 1.73 times as long: compare by the unprofiled times, take the cause only "
        "from the traces, and try a lighter profile."
    ]


def test_drift_is_said(tmp_path):
    configs = [run(tmp_path, c, [9, 9, 9, *[40.0] * 6, *[50.0] * 6], profiled=[]) for c in (28, 42)]
    assert "drift within 2 of 2 runs, by +24 %" in sentences(unprofiled_table(configs))[-1]


def test_too_few_unprofiled_steps_are_said_and_none_at_all_is_silence(tmp_path):
    config = run(tmp_path, 28, [900, 80, 60, 40], profiled=[60, 62])
    assert "too few to compare" in sentences(unprofiled_table([config]))[0]
    assert sentences(unprofiled_table([])) == []


@pytest.mark.parametrize("steps", [7, 3, 0])
def test_a_run_with_too_few_steps_is_named_where_others_have_enough(tmp_path, steps):
    configs = [run(tmp_path, 28, [40.0] * 12, profiled=[]), run(tmp_path, 42, [41.0] * steps, profiled=[])]
    table = unprofiled_table(configs)
    count = max(0, steps - 3)
    assert left_out(table) == [
        f"Fewer than 5 unprofiled steps after warm-up in 256t 42ch, repeat 1 ({count}): these blocks are "
        "left out of the comparison without the profiler."
    ]
    assert sentences(table)[0] == left_out(table)[0]


def test_runs_that_all_have_few_steps_lack_nothing_more(tmp_path):
    table = unprofiled_table([run(tmp_path, c, [9, 9, 9, 40], profiled=[50]) for c in (28, 42)])
    assert left_out(table) == [] and left_out(unprofiled_table([])) == []


def test_steps_of_which_a_rank_left_no_metrics_are_not_compared_and_said(tmp_path):
    """The rank that is absent may be the slowest: with the profiler off nothing else tells of it."""
    configs = [run(tmp_path, c, [40.0] * 12, profiled=[]) for c in (28, 42)]
    (configs[1].path / "rank_01_metrics.jsonl").unlink()
    table = unprofiled_table(configs)
    assert table["unprofiled_steps"].tolist() == [9, 0]
    (text,) = left_out(table)
    assert text.startswith("256t 42ch, repeat 1: metrics of 1 of 2 ranks, and an absent rank")
    assert left_out(table[1:]) == [text] and text in sentences(table[1:])
