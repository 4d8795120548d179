"""Tables of columns."""

from __future__ import annotations

import pickle

import pytest

from lab.recordings.kineto import read_kineto
from tests.recordings.kineto.plain import same, some_trace


def test_tables_are_immutable_and_survive_pickling(tmp_path):
    trace = read_kineto(some_trace().write(tmp_path / "t.json"))
    with pytest.raises(ValueError, match="read-only"):
        trace.ops.start_ns[0] = 0
    with pytest.raises(AttributeError, match="there are process"):
        _ = trace.ops.tz
    assert same(trace, pickle.loads(pickle.dumps(trace)))
    assert list(trace.operators.where(trace.operators.dur_ns > 10**9)) == list(trace.operators)
