"""What a task does on its node, without a Slurm: its GPUs are sampled beside its step."""

from __future__ import annotations

import json

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.core.step import Outcome, Status, Step
from lab.engines.slurm import task
from lab.engines.slurm.records import Ticket, read_trace, trace_path
from lab.errors import EngineError
from lab.recordings.gpu_state import read_state
from tests.engines.slurm.test_engine import a_run
from tests.gpus.test_amd import Tree


class Engine:
    """Waits until the step's GPUs have been sampled, as a step of some seconds would."""

    def __init__(self, folder, fails: bool = False) -> None:
        self.folder, self.fails = folder, fails

    def run(self, run, step, gpus, *, on_line, stop):
        for _ in range(1200):
            if any(len(path.read_text().splitlines()) > 2 for path in self.folder.glob("gpu_clocks*.csv")):
                break
            stop.wait(0.05)
        if self.fails:
            raise EngineError("the node fell over")
        return Outcome(status=Status.ok)


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Two AMD GPUs with sensors, which Slurm gave to each task."""
    tree = Tree(tmp_path)
    gpus = []
    for minor, mhz in ((128, 2100), (129, 1400)):
        for name, value in {"freq1_input": mhz * 10**6, "temp2_input": 60_000}.items():
            tree.write(f"class/drm/renderD{minor}/device/hwmon/hwmon1/{name}", f"{value}\n")
        gpus.append(Gpu(vendor="amd", index=minor - 128, uuid=f"GPU-{minor}", render_node=f"renderD{minor}"))
    monkeypatch.setenv("LAB_SYS_ROOT", tree.env["LAB_SYS_ROOT"])
    monkeypatch.setattr(task, "task_gpus", lambda step: gpus)
    step = Step(name="wide", argv=("python",), folder="wide", nodes=2, num_gpus=2)
    return a_run(tmp_path / "run", step)


def _execute(run, monkeypatch, rank: int, *, fails: bool = False) -> None:
    folder = run.root / "wide"
    monkeypatch.setenv("SLURM_NODEID", str(rank))
    monkeypatch.setattr(task, "engine_of", lambda ticket: Engine(folder, fails))
    ticket = Ticket(run_dir=str(run.root), step="wide", attempt=1, vendor="amd")
    task.execute_step(msgspec.json.encode(ticket).decode())


def test_every_node_samples_its_gpus_and_their_places_are_ranks(node, monkeypatch):
    for rank in (0, 1):
        _execute(node, monkeypatch, rank)
        assert read_trace(trace_path(node.root, "wide", rank)).outcome.ok
    folder = node.root / "wide"
    assert {path.name for path in folder.glob("gpu_clocks*")} == {
        *("gpu_clocks.csv", "gpu_clocks.json", "gpu_clocks.node1.csv", "gpu_clocks.node1.json")
    }
    state = read_state(folder)
    clocks = {
        place: state.values["sm_clock_mhz"][state.place == place][0] for place in set(state.place.tolist())
    }
    assert clocks == {0: 2100, 1: 1400, 2: 2100, 3: 1400}
    for name in ("gpu_clocks.json", "gpu_clocks.node1.json"):
        summary = json.loads((folder / name).read_text())
        assert summary["samples"] >= 1 and "reason" not in summary


def test_a_step_that_fails_ends_its_sampling_too(node, monkeypatch):
    _execute(node, monkeypatch, 0, fails=True)
    assert "fell over" in read_trace(trace_path(node.root, "wide", 0)).outcome.reason
    assert "reason" not in json.loads((node.root / "wide/gpu_clocks.json").read_text())
