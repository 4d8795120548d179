"""The tree of paths, row by row."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import MEMCPY
from lab.recordings.projection import project
from tests.recordings.projection.made import call, kernel, made, named


def test_the_tree_has_a_row_per_path_with_operations_and_its_depth():
    capture = made(
        [
            named("step", 0, 100),
            named("forward", 10, 50),
            named("idle", 20, 30),
            named("step", 200, 300),
            named("forward", 210, 250),
        ],
        [call(1, 35, 40), call(2, 240, 245), call(3, 260, 270), call(4, 400, 410)],
        [kernel(1, 0, 7), kernel(2, 10, 30), kernel(3, 40, 45, kind=MEMCPY), kernel(4, 50, 51)],
    )
    projection = project(capture)
    tree = projection.tree
    assert [projection.path(i) for i in range(len(tree))] == [(), ("step",), ("step", "forward")]
    expected = {
        "parent": [-1, 0, 1],
        "name_id": [-1, capture.strings.index("step"), capture.strings.index("forward")],
        "depth": [0, 1, 2],
        "self_ops": [1, 1, 2],
        "self_kernels": [1, 0, 2],
        "self_op_ns": [1, 5, 27],
        "self_kernel_ns": [1, 0, 27],
        "num_ops": [4, 3, 2],
        "num_kernels": [3, 2, 2],
        "op_ns": [33, 32, 27],
        "kernel_ns": [28, 27, 27],
    }
    assert {name: column.tolist() for name, column in tree.as_dict().items()} == expected
    assert {name: column.dtype for name, column in tree.as_dict().items()} == {
        name: np.int32 if name == "name_id" else np.int64 for name in expected
    }
    assert projection.instances.path.tolist() == [1, 2, -1, 1, 2]
