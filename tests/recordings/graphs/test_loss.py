"""Rule R: a replay that lost rows looks complete to every join of launches and kernels, and is not."""

from __future__ import annotations

import pytest

from lab.recordings.graphs import Source, join, lacks_of
from tests.recordings.graphs.made import Events, capture_into, decoder, replay_into, source

NAMES = [one.kernel for one in decoder()]


def recorded(tmp_path, *replays, captured=False, after=False, before=False):
    events = Events()
    if before:
        events.row("earlier", events.call("hipLaunchKernel"))
    if captured:
        capture_into(events, decoder())
    for kernels in replays:
        replay_into(events, kernels)
    if after:
        events.row("later", events.call("hipLaunchKernel"))
    return source(events.write(tmp_path / "recorded.json")).capture


def replay_lacks(capture):
    return lacks_of(join(Source(capture.source, capture)))


@pytest.mark.parametrize("lost", [[3], [17], [0], [2, 8, 9]])
def test_rows_missing_against_the_capture_are_counted(tmp_path, lost):
    kept = [name for index, name in enumerate(NAMES) if index not in lost]
    (lack,) = replay_lacks(recorded(tmp_path, kept, captured=True, after=True, before=True))
    assert (lack.axis, lack.place, lack.rule, lack.n, lack.of) == ("gpu", "hole", "R", len(lost), 18)
    assert lack.share == len(lost) / 18


def test_rows_missing_at_the_edge_of_the_recording_are_its_edge(tmp_path):
    (tail,) = replay_lacks(recorded(tmp_path, NAMES, NAMES[:11], captured=True))
    assert (tail.place, tail.n, tail.of) == ("tail", 7, 36)
    (head,) = replay_lacks(recorded(tmp_path, NAMES[7:], NAMES, captured=True))
    assert (head.place, head.n, head.of) == ("head", 7, 36)


def test_node_ids_tell_what_one_replay_lacks_and_another_has(tmp_path):
    events = Events()
    for lost in ((), (2,)):
        correlation = events.call("cudaGraphLaunch")
        for index, name in enumerate(NAMES):
            if index not in lost:
                node = {"graph id": 5, "graph node id": (5 << 32) + index}
                events.row(name, correlation, **node)
    lossy, unsure = replay_lacks(source(events.write(tmp_path / "nodes.json")).capture)
    assert (lossy.n, lossy.of, lossy.place) == (1, 36, "hole")  # what follows it in the last replay is here
    assert unsure.unknown  # both replays may lack the same node


def test_a_refused_capture_proves_nothing(tmp_path):
    own = source_of(tmp_path, NAMES)
    wrong = Events()
    capture_into(wrong, [one._replace(kernel=one.kernel + "_x") for one in decoder()])
    (lack,) = lacks_of(join(own, [source(wrong.write(tmp_path / "wrong.json"))]))
    assert lack.unknown


def source_of(tmp_path, kernels):
    events = Events()
    replay_into(events, kernels)
    return source(events.write(tmp_path / "replay.json"))
