"""Odd events: kept as far as they can be read, and counted."""

from __future__ import annotations

import json

import pytest

from lab.errors import BadDataError
from lab.recordings.kineto import read_kineto


def test_odd_events_are_kept_as_far_as_they_can_be_read_and_counted(tmp_path):
    good = {"ph": "X", "cat": "cpu_op", "name": "good", "pid": 1, "tid": 1, "ts": 5, "dur": 2}
    events = [
        good,
        {**good, "name": "text pid", "pid": "Spans", "tid": ""},
        {**good, "name": "args as text", "args": "hello"},
        {**good, "name": "args null", "args": None},
        {**good, "name": "id as float", "args": {"External id": 3.5}},
        {**good, "name": "huge id", "args": {"External id": 2**80}},
        {key: value for key, value in good.items() if key != "dur"},
        {key: value for key, value in good.items() if key != "ts"},
        {**good, "name": None},
        {**good, "ph": "Z", "name": "unknown phase"},
        {**good, "cat": "unheard of"},
        {"ph": "M"},
        {},
    ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    trace = read_kineto(tmp_path / "t.json")
    names = list(trace.text(trace.operators.name_id))
    assert names == ["good", "text pid", "args as text", "args null", "id as float", "huge id", ""]
    assert trace.operators.external_id.tolist() == [-1] * 7
    assert trace.operators.pid[1] == -2 - trace.strings.index("Spans") and trace.operators.tid[1] == -1
    report = "\n".join(trace.problems)
    assert "without a readable ts" in report and "without a readable dur" in report
    assert "64-bit" in report and "odd events" in report


@pytest.mark.parametrize("dur", ["NaN", "1e400", "-3", '"long"', "null", ""])
@pytest.mark.parametrize(
    ("category", "table", "axis"),
    [("kernel", "ops", "gpu"), ("cuda_runtime", "api", "host"), ("cpu_op", "operators", "ops")],
)
def test_a_duration_that_cannot_be_read_is_missing_and_not_zero(tmp_path, dur, category, table, axis):
    event = '{"ph":"X","cat":"%s","name":"k","pid":0,"tid":7,"ts":%d%s}'
    timed = [event % (category, ts, ',"dur":4') for ts in (10, 20, 30)]
    odd = event % (category, 15, f',"dur":{dur}' if dur else "")
    (tmp_path / "t.json").write_text(f'{{"traceEvents":[{",".join([*timed, odd])}]}}')
    trace = read_kineto(tmp_path / "t.json")
    assert getattr(trace, table).start_ns.tolist() == [10_000, 20_000, 30_000]
    assert set(getattr(trace, table).dur_ns.tolist()) == {4000}
    (lack,) = trace.lacks
    assert (lack.axis, lack.place, lack.n, lack.of) == (axis, "hole", 1, 4)
    assert "readable" in lack.text and any("without a readable dur" in text for text in trace.problems)


def test_control_characters_and_bad_utf8_in_names_are_replaced_and_counted(tmp_path):
    raw = (
        b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a\x01b\nc","ts":1,"dur":1},'
        b'{"ph":"X","cat":"cpu_op","name":"d\xff","ts":2,"dur":1},'
        b'{"ph":"X","cat":"cpu_op","name":"\\ud800","ts":3,"dur":1},'
        b'{"ph":"X","cat":"cpu_op","name":"plain","ts":4.25,"dur":1}]}'
    )
    (tmp_path / "t.json").write_bytes(raw)
    trace = read_kineto(tmp_path / "t.json")
    assert trace.operators.start_ns.tolist() == [1000, 2000, 3000, 4250]
    assert trace.strings[0] == "a\x01b\nc" and trace.strings[1] == "d\ufffd" and "plain" in trace.strings
    assert "\n".join(trace.strings).encode()  # writable again
    assert any("(3 times)" in problem for problem in trace.problems)


def test_bad_utf8_in_shapes_and_names_that_are_kept_unread_is_replaced_and_counted(tmp_path):
    raw = (
        b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"args":{'
        b'"Input type":["d\xff"]}},'
        b'{"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"t\xff"}}]}'
    )
    (tmp_path / "t.json").write_bytes(raw)
    trace = read_kineto(tmp_path / "t.json")
    assert (
        trace.text(trace.operators.types_id).tolist() == ['["d\ufffd"]'] and "(2 times)" in trace.problems[0]
    )
    assert trace.text(trace.thread_names.name_id).tolist() == ["t\ufffd"]


def test_deep_nesting_is_refused_and_not_followed(tmp_path):
    deep = "[" * 200_000 + "]" * 200_000
    (tmp_path / "t.json").write_text(f'{{"traceEvents":[{{"ph":"X","args":{deep}}}]}}')
    with pytest.raises(BadDataError):
        read_kineto(tmp_path / "t.json")
