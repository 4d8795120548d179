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


def test_the_fastest_is_named_with_what_the_profile_costs(tmp_path):
    configs = [
        run(tmp_path, channels, [500, 50, 50, *[base + repeat / 10] * 9], profiled=[70], repeat=repeat)
        for channels, base in ((28, 39.0), (42, 45.0))
        for repeat in (1, 2, 3)
    ]
    told = sentences(unprofiled_table(configs))
    assert told[0].startswith("Without the profiler 256 threads, 28 channels is fastest: 40.2 ms per step")
    assert "28 channels alone may be the best (a lead of 14.9 %, " in told[0] and "over 3 blocks" in told[0]
    assert "times as long: compare by the unprofiled times" in told[1]


def test_blocks_take_out_what_all_settings_share(tmp_path):
    """Repeats 20 % apart, settings 2 %: intervals over runs overlap, the blocks tell them apart."""
    configs = [
        run(tmp_path, channels, [9, 9, 9, *[base * slow + repeat / 100] * 9], profiled=[], repeat=repeat)
        for channels, base in ((28, 100.0), (42, 102.0), (56, 102.1))
        for repeat, slow in ((1, 1.0), (2, 1.2), (3, 1.4))
    ]
    assert "28 channels alone may be the best (a lead of 2.0 %" in sentences(unprofiled_table(configs))[0]


def test_settings_that_scatter_as_much_as_they_differ_may_all_be_best(tmp_path):
    times = {28: [40.0, 41.0, 40.2], 42: [40.6, 40.3, 40.5], 56: [60.0, 60.5, 60.1]}
    configs = [
        run(tmp_path, channels, [9, 9, 9, *[ms] * 9], profiled=[], repeat=repeat)
        for channels, row in times.items()
        for repeat, ms in enumerate(row, start=1)
    ]
    told = sentences(unprofiled_table(configs))[0]
    assert (
        "256 threads, 28 channels or 256 threads, 42 channels may be the best" in told
        and "56 channels" not in told
    )


def test_one_run_each_may_be_chance_and_drift_is_said(tmp_path):
    configs = [run(tmp_path, c, [9, 9, 9, *[40.0] * 6, *[50.0] * 6], profiled=[]) for c in (28, 42)]
    told = sentences(unprofiled_table(configs))
    assert "may be chance" in told[0] and "drift within 2 of 2 runs, by +24 %" in told[-1]


def test_too_few_unprofiled_steps_are_said_and_none_at_all_is_silence(tmp_path):
    config = run(tmp_path, 28, [900, 80, 60, 40], profiled=[60, 62])
    assert "too few to compare" in sentences(unprofiled_table([config]))[0]
    assert sentences(unprofiled_table([])) == []


@pytest.mark.parametrize("steps", [7, 3, 0])
def test_a_block_that_lacks_steps_of_one_setting_counts_for_none(tmp_path, steps):
    """Block 3 is the slow one: with 28 channels' run of it alone, 42 channels would win on paper."""
    configs = [
        run(
            tmp_path,
            channels,
            [9, 9, 9, *[base + slow] * 9][: steps if (channels, repeat) == (42, 3) else 12],
            profiled=[],
            repeat=repeat,
        )
        for channels, base in ((28, 40.0), (42, 41.0))
        for repeat, slow in ((1, 0.0), (2, 0.1), (3, 30.0))
    ]
    table = unprofiled_table(configs)
    told = sentences(table)
    assert told[0].startswith("Without the profiler 256 threads, 28 channels is fastest: 41.0 ms per step")
    assert "42 channels takes 42.0 ms" in told[0] and "over 2 blocks" in told[0]
    count = max(0, steps - 3)
    assert left_out(table) == [
        f"Fewer than 5 unprofiled steps after warm-up in 256t 42ch, repeat 3 ({count}): these blocks are "
        "left out of the comparison without the profiler."
    ]
    assert told[1] == left_out(table)[0]


def test_runs_that_all_have_few_steps_lack_nothing_more(tmp_path):
    table = unprofiled_table([run(tmp_path, c, [9, 9, 9, 40], profiled=[50]) for c in (28, 42)])
    assert left_out(table) == [] and left_out(unprofiled_table([])) == []
