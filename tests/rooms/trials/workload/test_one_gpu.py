"""What NVML says of a board's memory; a number that it does not report is absent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("pynvml")
import pynvml

from lab.rooms.trials.workload.one_gpu import counters

pytestmark = pytest.mark.torch


def meter(**answers):
    return SimpleNamespace(nvml=pynvml, value=lambda name, *arguments: answers.get(name))


def test_counts_and_flags_are_numbers():
    seen = counters(
        meter(
            nvmlDeviceGetTotalEccErrors=4,
            nvmlDeviceGetRemappedRows=(1, 2, True, False),
            nvmlDeviceGetRetiredPages=[],
        )
    )
    assert seen == {
        "ecc_correctable": 4,
        "ecc_uncorrectable": 4,
        "rows_remapped_correctable": 1,
        "rows_remapped_uncorrectable": 2,
        "remap_pending": 1,
        "remap_failed": 0,
        "pages_retired": 0,
    }


def test_what_the_driver_does_not_report_is_absent_and_not_zero():
    assert counters(meter()) == {}
