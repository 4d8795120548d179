"""The measuring step without a GPU, and idle power."""

from __future__ import annotations

import msgspec
import pytest

from lab.errors import GpuError
from lab.rooms.kernels.energy.choice import EnergyConfig
from tests.power.made import FakeMeter
from tests.rooms.kernels.energy.made import a_plan, a_raw, a_window


@pytest.mark.torch
def test_the_workload_without_a_gpu_says_so(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count():
        pytest.skip("a GPU is here")
    from lab.rooms.kernels.workload.energy.main import main

    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(a_plan()))
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(EnergyConfig()))
    arguments = [
        "--plan",
        f"{tmp_path}/plan.json",
        "--config",
        f"{tmp_path}/config.json",
        "--out",
        str(tmp_path),
    ]
    with pytest.raises(GpuError, match="sees no GPU"):
        main(arguments)


@pytest.mark.torch
def test_idle_is_a_window_in_which_nothing_runs_and_the_warm_one_is_taken_off():
    pytest.importorskip("torch")
    from lab.rooms.kernels.energy.evaluate import idle_power
    from lab.rooms.kernels.workload.energy.main import at_rest

    class Steady(FakeMeter):
        def energy_j(self):
            import time

            return round(time.monotonic() * 100.0, 0)  # 100 W in steps of 1 J

    tries = (at_rest(Steady(), 0.4).counter_j for _ in range(100))
    assert any(found is not None for found in tries)  # on a busy machine the meter is not read often enough
    assert idle_power(a_raw()) == (100.0, None)
    assert idle_power(a_raw(idle_between=[a_window(510.0), a_window(530.0)]))[0] == pytest.approx(104.0)


@pytest.mark.torch
def test_calls_that_cannot_be_made_are_said_to_be_missing_from_the_whole(tmp_path):
    torch = pytest.importorskip("torch")
    from lab.rooms.kernels.workload.energy.main import Measurement

    plan, raw = msgspec.structs.replace(a_plan(), config={}), a_raw()
    one = Measurement(plan, EnergyConfig(), FakeMeter(), raw, tmp_path)
    one.device = torch.device("cpu")
    one._model_or_replay()
    assert plan.calls and f"{len(plan.calls)} of {len(plan.calls)} call" in raw.notes[-1]
    assert "missing from the whole" in raw.notes[-1]
