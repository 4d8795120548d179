"""Hardware counters: instances of a dispatch are summed, dispatches of a kernel are a mean and a spread."""

from __future__ import annotations

import numpy as np
import pytest

from lab.recordings.combine import combined
from lab.recordings.counters import COUNTER_COLUMNS, counter_table
from lab.recordings.load import load_capture
from lab.recordings.processes import single_processes
from tests.recordings import rocpdgen, sdkgen


def rows(capture):
    found = capture.counters
    columns = [getattr(found, one).tolist() for one in COUNTER_COLUMNS]
    return {
        (capture.name(name), capture.name(counter)): figures
        for _, name, counter, _, *figures in zip(*columns, strict=True)
    }


EXPECTED = {
    ("alpha", "SQ_WAVES"): [2, 30.0, 10.0, 20.0],
    ("alpha", "TCC_HIT"): [1, 3.5, 3.5, 3.5],
    ("beta", "SQ_WAVES"): [1, 7.0, 7.0, 7.0],
}


def test_rocprofv3_s_json(tmp_path):
    element = sdkgen.Element()
    element.kernel(1, (10, 20), 1, 1)
    element.counted(1, 1, ("SQ_WAVES", 4), ("SQ_WAVES", 6), ("TCC_HIT", 3.5))
    element.counted(1, 2, ("SQ_WAVES", 20))
    element.counted(2, 3, ("SQ_WAVES", 7))
    capture = load_capture(sdkgen.write(tmp_path / "a.json", element))
    assert rows(capture) == EXPECTED
    assert not any("counter" in text for text in capture.problems)


def rocpd(path, guid=rocpdgen.GUIDS[0]):
    process = rocpdgen.Process(guid, 5)
    for index, name in enumerate(("alpha", "alpha", "beta")):
        at = 100 * index
        process.launch(name, (at, at + 10), (at + 20, at + 50), index + 1)
    for name, units in (("SQ_WAVES", "count"), ("TCC_HIT", "")):
        process.add("info_pmc", pid=5, agent_id=2, name=name, units=units)
    events = [row["event_id"] for row in process.rows["kernel_dispatch"]]
    for event, pmc, value in ((0, 1, 4), (0, 1, 6.0), (0, 2, 3.5), (1, 1, 20), (2, 1, 7)):
        process.add("pmc_event", event_id=events[event], pmc_id=pmc, value=value)
    return process, path


def test_rocpd_s_tables(tmp_path):
    process, path = rocpd(tmp_path / "a.db")
    capture = load_capture(rocpdgen.write(path, process))
    assert rows(capture) == EXPECTED
    units = {capture.name(one) for one in capture.counters.unit_id.tolist()}
    assert units == {"count", ""}


def test_values_that_are_none_or_of_no_dispatch_are_left_out_and_counted(tmp_path):
    process, path = rocpd(tmp_path / "a.db")
    event = process.rows["kernel_dispatch"][0]["event_id"]
    for value in ("many", None, float("inf"), b"\x00"):
        process.add("pmc_event", event_id=event, pmc_id=1, value=value)
    process.add("pmc_event", event_id=987, pmc_id=1, value=1)
    capture = load_capture(rocpdgen.write(path, process))
    assert rows(capture) == EXPECTED
    assert "5 counter values of no dispatch, or no number: left out" in capture.problems


def test_processes_keep_their_counters(tmp_path):
    both = [
        load_capture(rocpdgen.write(tmp_path / f"{i}.db", rocpd(None, guid)[0]))
        for i, guid in enumerate(rocpdgen.GUIDS)
    ]
    whole = combined(tmp_path, both)
    assert whole.counters.process.tolist() == [0] * 3 + [1] * 3
    for one in single_processes(whole).values():
        assert rows(one) == EXPECTED


def test_a_dispatch_s_value_is_the_sum_of_its_instances():
    keys = np.array([[0, 1, 2, -1]] * 4)
    found = counter_table(keys, np.array([5, 5, 6, 6]), np.array([1.0, 2.0, 10.0, 20.0]))
    assert (found.measured.tolist(), found.sum.tolist()) == ([2], [33.0])
    assert (found.min.tolist(), found.max.tolist()) == ([3.0], [30.0])


@pytest.mark.parametrize("value", ['"x"', "null", "{}", "1e999"])
def test_a_value_that_the_tool_does_not_write_is_an_error_or_left_out(tmp_path, value):
    from lab.errors import BadDataError

    element = sdkgen.Element()
    element.kernel(1, (10, 20), 1, 1)
    element.counted(1, 1, ("SQ_WAVES", 4.25))
    path = sdkgen.write(tmp_path / "a.json", element)
    path.write_text(path.read_text().replace("4.25", value))
    with pytest.raises(BadDataError, match="rocprofv3 does not write"):
        load_capture(path)
