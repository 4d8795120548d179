"""On a CPU, ops stand in for launches."""

from __future__ import annotations

import numpy as np

from lab.rooms.kernels.catalogue.align import working_ops

NAMES = "aten::linear aten::t aten::addmm aten::copy_ aten::to aten::_to_copy aten::copy_ aten::view"


def test_on_a_cpu_ops_that_own_work_stand_in_for_launches():
    names = np.array(NAMES.split(), dtype=object)
    parent = np.array([-1, 0, 0, 2, -1, 4, 5, -1])
    rows = working_ops(names, parent, np.arange(8))
    assert names[rows].tolist() == ["aten::addmm", "aten::copy_"] and rows.tolist() == [2, 6]
