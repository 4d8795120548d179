"""Runtime calls are not launches; torn CSV is refused."""

from __future__ import annotations

import pytest

from lab.rooms.kernels.audit.check import OK, REFUSED
from lab.rooms.kernels.audit.counts import is_runtime_call, no_runtime_calls, valid_csv


@pytest.mark.parametrize(
    ("name", "is_call"),
    [
        ("cudaLaunchKernel", True),
        ("hipMemcpyAsync", True),
        ("cuLaunchKernel", True),
        ("cutlass::Kernel2<x>", False),
        ("void cunn_SoftMaxForward<4>", False),
        ("Memcpy DtoD (Device -> Device)", False),
    ],
)
def test_runtime_calls_are_told_from_kernels(name, is_call):
    assert is_runtime_call(name) is is_call


def test_runtime_calls_among_counts_are_refused():
    check = no_runtime_calls([("cudaLaunchKernel", 60), ("void gemv<1>", 40)])
    assert (check.verdict, check.factors["launches"]) == (REFUSED, 40)
    assert no_runtime_calls([("void gemv<1>", 40)]).verdict == OK


def test_quotes_escaped_by_a_backslash_are_no_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('name,json\nk,"{\\"a\\":1}"\n')
    assert valid_csv(path).verdict == REFUSED
    path.write_text('name,json\nk,"{""a"":1}"\n')
    assert valid_csv(path).verdict == OK
