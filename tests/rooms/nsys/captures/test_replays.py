"""`lab nsys summary` of graph replays: ranges and operators at capture, and how they were found."""

from __future__ import annotations

import json

import pytest

from lab.cli.main import main
from tests.recordings.graphs.made import Events, capture_into, decoder, replay_into

NAMES = [one.kernel for one in decoder()]


@pytest.fixture
def summary(capsys):
    def called(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["nsys", "summary", *map(str, arguments)])
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return called


def replay(tmp_path, kernels=NAMES, after=False):
    events = Events()
    for step in range(2):
        start = events.now
        replay_into(events, kernels)
        events.add("user_annotation", f"step_{step}", start - 1, events.now - start, {})
    if after:
        events.row("later", events.call("hipLaunchKernel"))
    return events.write(tmp_path / "replay.json")


def capture(tmp_path):
    events = Events()
    capture_into(events, decoder())
    return events.write(tmp_path / "capture.json")


def test_phases_go_on_with_the_modules_of_the_capture(summary, tmp_path):
    code, out, _ = summary(replay(tmp_path), "--capture", capture(tmp_path), "--json")
    found = json.loads(out)
    assert code == 0
    kernels = {"/".join(one["path"]): one["kernels"] for one in found["phases"]}
    assert kernels["Model"] == [18] and kernels["Model/Block"] == [16]
    assert kernels["Model/Block/Linear"] == [8]
    assert {one["name"]: one["kernels"] for one in found["replayed"]}["aten::mm"] == 16
    assert found["replay_rules"]["order"][0] == 36


def test_a_capture_that_does_not_fit_is_said_and_known_to_the_exit_code(summary, tmp_path):
    own = replay(tmp_path, [f"{name}_x" for name in NAMES])
    code, out, err = summary(own, "--capture", capture(tmp_path))
    assert code == 1 and "was not used" in err and "was not used" in out
    code, out, _ = summary(own)
    assert code == 0 and "36 operations of graph replays without a range or an operator" in out


def test_lost_rows_end_with_the_code_of_incomplete_data(summary, tmp_path):
    code, out, err = summary(replay(tmp_path, NAMES[:-1], after=True), "--capture", capture(tmp_path))
    assert code == 1
    assert "graph replays lack 2 of 36 captured launches" in err and "lack 2 of 36" in out


def test_nsys_shows_the_ranges_of_the_capture_inside_each_replay(summary, shared_data):
    path = shared_data / "captures" / "h200_decoder" / "nsys_graph_nodes.sqlite.gz"
    code, out, _ = summary(path, "--json")
    found = json.loads(out)
    assert code == 0
    kernels = {"/".join(one["path"]): one["kernels"] for one in found["phases"]}
    for number in range(5):
        for block in range(4):
            assert kernels[f"replay_{number}/block_{block}"] == [4]
    assert found["replay_rules"]["node"][0] == 80
