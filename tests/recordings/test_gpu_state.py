"""Samples of GPUs on the time of the traces; files come from outside."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from lab.power.sampling import COLUMNS, SAMPLES, SUMMARY
from lab.recordings.gpu_state import read_state, rows_of

T0 = 1_700_000_000_000_000_000
MS = 1_000_000


def write_state(
    folder, clocks: dict[int, list[float]], *, every_ms: int = 100, bits: int = 0, begin: int = T0
):
    """One sample per GPU and interval with these clocks by place."""
    lines = [",".join(COLUMNS)]
    for place, values in clocks.items():
        lines += [
            f"{begin + at * every_ms * MS},{place},GPU-{place},{mhz:g},2619,650.5,{60 + place},{bits}"
            for at, mhz in enumerate(values)
        ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SAMPLES).write_text("\n".join(lines) + "\n")
    (folder / SUMMARY).write_text(
        json.dumps({"interval_s": 0.1, "cpu_s": 0.05, "wall_s": 10.0, "reasons": {}})
    )
    return folder


def test_the_nearest_sample_holds_and_none_far_away(tmp_path):
    state = read_state(write_state(tmp_path, {0: [1980, 1200, 1980], 1: [1500] * 3}))
    when = T0 + np.array([10 * MS, 96 * MS, 149 * MS, 151 * MS, 5_000 * MS])
    assert state.at(0, when)[:4].tolist() == [1980, 1200, 1200, 1980] and math.isnan(state.at(0, when)[4])
    assert np.isnan(state.at(7, when)).all() and state.cost_share == pytest.approx(0.005)


def test_a_summary_names_what_slowed_a_gpu_and_leaves_idle_samples_out(tmp_path):
    write_state(tmp_path, {0: [1200.0] * 4}, bits=4)
    with (tmp_path / SAMPLES).open("a") as file:
        file.write(f"{T0 + 50 * MS},0,GPU-0,345,2619,80,30,1\n")  # idle
    (row,) = rows_of(read_state(tmp_path), dict.fromkeys((0, 1), (T0, T0 + 300 * MS)))
    assert (row["rank"], row["samples"], row["sm_clock_mhz"], row["sm_clock_min_mhz"]) == (0, 4, 1200, 1200)
    assert row["slowed_by"] == "software power cap 100 %" and row["temperature_max_c"] == 60


def test_no_samples_are_none_and_odd_lines_are_counted_and_left_out(tmp_path):
    assert read_state(tmp_path) is None
    (tmp_path / SAMPLES).write_text("head\nx\n1,2\n5,0,GPU,,,,,\n-3,0,G,1,1,1,1,1\n9,0,G,1,1,1,1\n")
    (tmp_path / SUMMARY).write_text("[1]")
    state = read_state(tmp_path)
    assert state.unix_ns.tolist() == [5] and math.isnan(state.cost_share)
    assert np.isnan(state.at(0, np.array([5]))).all()
    assert state.reasons == ("4 lines of samples cannot be read",)


def test_the_nodes_of_a_job_are_one_state_and_each_rank_is_seen_by_its_own_clock(tmp_path):
    second = 1_000 * MS
    write_state(tmp_path, {0: [1980] * 5, 1: [1970] * 5})
    other = write_state(tmp_path / "x", {2: [1200] * 5, 3: [1210] * 5}, begin=T0 + 60 * second)  # its clock
    (other / SAMPLES).rename(tmp_path / "gpu_clocks.node1.csv")
    about = {"interval_s": 0.1, "cpu_s": 2.0, "wall_s": 10.0, "reasons": {"GPU-9": "no such sensor"}}
    (tmp_path / "gpu_clocks.node1.json").write_text(json.dumps(about))
    state = read_state(tmp_path)
    assert sorted(set(state.place.tolist())) == [0, 1, 2, 3]
    assert state.cost_share == pytest.approx(0.2) and state.reasons == ("no such sensor",)
    spans = {0: (T0, T0 + second), 3: (T0 + 60 * second, T0 + 61 * second)}
    assert [(row["rank"], row["sm_clock_mhz"]) for row in rows_of(state, spans)] == [(0, 1980), (3, 1210)]


def test_samples_that_are_seconds_apart_say_something_until_the_next(tmp_path):
    state = read_state(write_state(tmp_path, {0: [1900, 1400, 1900]}, every_ms=6_000))
    assert state.near_ns == 6_000 * MS
    found = state.at(0, T0 + np.array([2_900, 3_100, 15_000, 19_000]) * MS)
    assert found[:3].tolist() == [1900, 1400, 1900] and math.isnan(found[3])


def test_why_clocks_were_not_sampled_is_known_without_a_sample(tmp_path, monkeypatch):
    about = {"interval_s": 0.25, "samples": 0, "reason": "the sampling process failed"}
    (tmp_path / SUMMARY).write_text(json.dumps(about))
    state = read_state(tmp_path)
    assert state.reasons == ("the sampling process failed",) and not len(state.unix_ns)
    assert rows_of(state, {0: (T0, T0 + MS)}) == [] and np.isnan(state.at(0, np.array([T0]))).all()
    write_state(tmp_path, {0: [1980]})
    monkeypatch.setattr("lab.recordings.gpu_state.MOST_BYTES", 10)
    (reason,) = read_state(tmp_path).reasons
    assert "more than lab reads" in reason


def test_a_node_whose_sampling_was_killed_leaves_its_cost_unknown(tmp_path):
    write_state(tmp_path, {0: [1980]})
    (tmp_path / "gpu_clocks.node1.csv").write_text(",".join(COLUMNS) + f"\n{T0},1,G,1500,1,1,1,0\n")
    state = read_state(tmp_path)
    assert math.isnan(state.cost_share) and state.at(1, np.array([T0]))[0] == 1500


def test_a_first_node_without_samples_is_said_and_spoils_no_other_nodes_figures(tmp_path):
    write_state(tmp_path, {1: [1980]})
    for name in (SAMPLES, SUMMARY):
        (tmp_path / name).rename(tmp_path / name.replace(".", ".node1."))
    state = read_state(tmp_path)
    assert (state.interval_s, state.cost_share) == (0.1, 0.005)
    assert state.reasons == ("gpu_clocks.csv of the first node is missing",)
