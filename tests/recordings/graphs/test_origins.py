"""A projection goes on with the ranges of the capture, and no operator around a graph's launch owns it."""

from __future__ import annotations

from lab.recordings.graphs.origins import origins_of
from lab.recordings.projection import project
from tests.recordings.graphs.made import Events, capture_into, decoder, replay_into, source

NAMES = [one.kernel for one in decoder()]


def ranged_capture(tmp_path):
    """Two blocks of the capture as ranges of the program, inside a range around the whole capture."""
    events = Events()
    start = events.now
    half = [decoder()[:9], decoder()[9:]]
    events.call("hipStreamBeginCapture")
    for index, launches in enumerate(half):
        begin = events.now
        for one in launches:
            events.launch(one._replace(modules=()))
        events.add("user_annotation", f"block_{index}", begin - 4, events.now - begin, {})
    events.call("hipStreamEndCapture")
    events.add("user_annotation", "capture", start - 5, events.now - start + 5, {})
    return source(events.write(tmp_path / "capture.json"))


def replay_in_an_op(tmp_path):
    events = Events()
    start = events.now
    replay_into(events, NAMES)
    events.add("cpu_op", "Torch-Compiled Region: 0/0", start - 1, 40, {"External id": 1})
    events.add("user_annotation", "step_0", start - 2, 60, {})
    return source(events.write(tmp_path / "replay.json")).capture


def paths(projection):
    return [projection.path(int(index)) for index in projection.ops.path]


def test_paths_go_on_with_the_ranges_of_the_capture(tmp_path):
    capture = replay_in_an_op(tmp_path)
    found = project(capture, origins=origins_of(capture, [ranged_capture(tmp_path)]))
    assert paths(found) == [("step_0", "block_0")] * 9 + [("step_0", "block_1")] * 9


def test_without_a_capture_the_op_around_the_launch_owns_nothing(tmp_path):
    capture = replay_in_an_op(tmp_path)
    assert paths(project(capture)) == [("step_0",)] * 18
    found = project(capture, origins=origins_of(capture))
    assert paths(found) == [("step_0",)] * 18
    assert "18 operations of graph replays without a range or an operator" in found.problems[0]


def test_modules_stand_in_where_the_capture_has_no_ranges(tmp_path):
    events = Events()
    capture_into(events, decoder())
    captured = source(events.write(tmp_path / "capture.json"))
    capture = replay_in_an_op(tmp_path)
    found = paths(project(capture, origins=origins_of(capture, [captured])))
    assert found[:3] == [
        ("step_0", "Model", "Embedding"),
        ("step_0", "Model", "Block", "Norm"),
        ("step_0", "Model", "Block", "Linear"),
    ]
