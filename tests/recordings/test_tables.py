"""Tables of columns."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from lab.recordings.kineto import read_kineto
from lab.recordings.tables import Growing, concat
from tests.recordings.kineto.plain import same, some_trace


def test_tables_are_immutable_and_survive_pickling(tmp_path):
    trace = read_kineto(some_trace().write(tmp_path / "t.json"))
    with pytest.raises(ValueError, match="read-only"):
        trace.ops.start_ns[0] = 0
    with pytest.raises(AttributeError, match="there are process"):
        _ = trace.ops.tz
    assert same(trace, pickle.loads(pickle.dumps(trace)))
    assert list(trace.operators.where(trace.operators.dur_ns > 10**9)) == list(trace.operators)


def test_a_growing_table_is_the_chunks_one_after_the_other_in_the_schemas_kinds():
    schema = {"ts_ns": np.int64, "kind": np.int8, "on_gpu": np.bool_}
    draw = np.random.default_rng(3)
    sizes = [0, 1, 1023, 5, 4000, 0, 1]
    chunks = [
        {"ts_ns": draw.integers(0, 2**60, n), "kind": draw.integers(0, 3, n), "on_gpu": draw.random(n) < 0.5}
        for n in sizes
    ]
    growing = Growing(schema)
    for chunk in chunks:
        growing.append(chunk)
    assert len(growing) == sum(sizes)
    columns, whole = growing.columns(), concat(chunks, schema).as_dict()
    for name, kind in schema.items():
        assert columns[name].dtype == kind and columns[name].tolist() == whole[name].tolist()


def test_a_growing_table_of_nothing_has_its_columns():
    columns = Growing({"a": np.int32}).columns()
    assert columns["a"].dtype == np.int32 and len(columns["a"]) == 0
