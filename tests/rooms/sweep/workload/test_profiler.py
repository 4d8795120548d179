"""The traces that the profiler writes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from lab.rooms.sweep.config.load import load_train_config  # noqa: E402
from lab.rooms.sweep.workload.__main__ import profiler, sync_events, write_trace  # noqa: E402

pytestmark = pytest.mark.torch


def test_tensorboard_gets_its_own_copy_of_the_trace(tmp_path: Path) -> None:
    class Recorded:
        step_num = 7

        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_bytes(gzip.compress(b'{"traceEvents": []}'))

    config = load_train_config("tiny", ["profiling.tensorboard=true", "profiling.chrome_trace=false"])
    write_trace(Recorded(), config=config, out=tmp_path, rank=3)
    assert [path.name for path in tmp_path.rglob("*.gz")] == ["rank3.7.pt.trace.json.gz"]


def test_waits_of_streams_are_recorded_where_torch_can(monkeypatch) -> None:
    if torch.version.hip is None:
        assert set(sync_events()) in ({"experimental_config"}, set())

    def older(**_: object) -> None:
        raise TypeError("unexpected keyword argument")

    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", older, raising=False)
    assert sync_events() == {}


def test_a_profile_with_waits_of_streams_writes_its_trace_without_a_gpu(tmp_path: Path) -> None:
    config = load_train_config("tiny", ["profiling.cuda_sync=true"])
    with profiler(config, tmp_path, 0, torch.device("cpu")) as profile:
        for _ in range(5):
            torch.ones(4).sum()
            profile.step()
    assert [path.name for path in tmp_path.rglob("*.json.gz")] == ["trace_step4.json.gz"]
