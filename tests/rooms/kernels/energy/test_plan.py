"""The plan of an energy run."""

from __future__ import annotations

import pytest

from lab.errors import GpuError, UsageError
from lab.rooms.kernels.energy.choice import EnergyConfig
from tests.rooms.kernels.energy.made import a_plan


def test_a_run_without_gpu_is_refused_before_anything_starts():
    from lab.core.plan import Site
    from lab.rooms.kernels.plan import energy_run

    with pytest.raises((GpuError, UsageError), match="measured on a GPU"):
        energy_run(a_plan(), EnergyConfig(), Site(vendor="none"))
