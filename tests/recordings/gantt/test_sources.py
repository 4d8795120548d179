"""The line of the model, or the generated file, that an operation of a chart comes from."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from lab.recordings.gantt import bars_of_capture, sources_of
from lab.recordings.load import load_capture
from lab.recordings.projection import project
from tests.recordings import rocpdgen
from tests.tracegen import TraceWriter

HASH = "c" + "a" * 51


def trace(tmp_path, *, stacks=True, compiled=False):
    """aten::mm in a function of the model, aten::add in the framework alone, aten::mul in no function."""
    writer = TraceWriter()
    if stacks:
        writer.event("python_function", "train.py(3): <module>", 100, 250, **{"Python id": 1})
        writer.event("python_function", "net/model.py(12): forward", 110, 90, **{"Python id": 2})
        writer.event("python_function", "torch/nn/modules/linear.py(9): forward", 115, 50, **{"Python id": 3})
        writer.event("python_function", "torch/_ops.py(7): add", 410, 50, **{"Python id": 4})
    for name, at in (("aten::mm", 120), ("aten::add", 420), ("aten::mul", 620)):
        writer.kernel(f"k{name[-3:]}", at + 9, 5, op=writer.op(name, at, 10))
    if compiled:
        op = writer.op("triton_poi_fused_add_0", 720, 10, kernel_hash=HASH, kernel_file=f"/x/{HASH}.py")
        writer.kernel("triton_poi_fused_add_0", 729, 5, op=op)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(writer.document() | {"with_stack": int(stacks)}))
    return load_capture(path)


def labels(capture):
    bars = bars_of_capture(project(capture))
    if "source" not in bars.labels:
        return None
    texts = np.array([*bars.texts, ""], dtype=object)
    names = np.array(bars.names, dtype=object)[bars.name]
    return dict(zip(names.tolist(), texts[bars.labels["source"]].tolist(), strict=True))


def test_the_innermost_line_of_the_program_is_the_source(tmp_path):
    found = labels(trace(tmp_path))
    assert found == {"k:mm": "model.py:12 forward", "kadd": "", "kmul": ""}


def test_a_generated_file_is_the_source_where_no_line_is_known(tmp_path):
    found = labels(trace(tmp_path, stacks=False, compiled=True))
    assert found == {"k:mm": "", "kadd": "", "kmul": "", "triton_poi_fused_add_0": f"{HASH}.py"}


def test_without_stacks_and_compiled_kernels_there_is_no_such_label(tmp_path):
    assert labels(trace(tmp_path, stacks=False)) is None


def test_other_tools_record_no_source(tmp_path):
    capture = load_capture(rocpdgen.write(tmp_path / "a.db", rocpdgen.two()[0]))
    assert sources_of(capture, np.array([-1, -1])).tolist() == ["", ""]
    assert sources_of(capture, np.array([], dtype=np.int64)).tolist() == []
    assert sources_of(replace(capture, collector="kineto"), np.array([-1, -1])).tolist() == ["", ""]


def test_the_lines_of_a_real_model(shared_data):
    path = shared_data / "captures" / "h200_decoder" / "infer_eager_modules.json.gz"
    if not path.exists():
        pytest.skip("no shared recordings of a decoder")
    assert set(labels(load_capture(path)).values()) == {"graphs.py:9 forward", "graphs.py:16 forward"}
