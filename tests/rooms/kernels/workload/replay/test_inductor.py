"""Inductor's kernels built again from their files: here as far as a CPU goes, on a GPU to the same kernel."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.kernels.replay.args import TritonKernel  # noqa: E402
from lab.rooms.kernels.replay.arguments.schemas import Unresolved  # noqa: E402
from lab.rooms.kernels.replay.calls.inductor import hash_of  # noqa: E402
from lab.rooms.kernels.replay.calls.source import read_plan  # noqa: E402
from lab.rooms.kernels.workload.replay import inductor  # noqa: E402
from lab.rooms.kernels.workload.replay.run import run  # noqa: E402

NAME = "triton_poi_fused_add_0"


def kernel(source, **how):
    return TritonKernel(name=NAME, hash=hash_of(source), source=source, **how)


def test_the_kernel_of_a_file_is_found_by_its_name():
    source = f"class Tuner:\n    configs = []\n    run = print\n{NAME} = Tuner()\n"
    assert inductor.load(kernel(source)).run is print


@pytest.mark.parametrize(
    ("source", "why"), [("x = 1\n", "defines no kernel"), ("import absent_\n", "not load")]
)
def test_a_file_without_the_kernel_or_of_another_torch_is_a_reason(source, why):
    with pytest.raises(Unresolved, match=why):
        inductor.load(kernel(source))


def test_only_the_recorded_configuration_is_kept():
    configs = [
        SimpleNamespace(kwargs={"XBLOCK": size}, num_warps=warps, num_stages=1)
        for size in (64, 128)
        for warps in (4, 8)
    ]
    tuner = SimpleNamespace(configs=list(configs))
    inductor.as_recorded(tuner, kernel("", block_sizes="XBLOCK=128", num_warps=4, num_stages=1))
    assert tuner.configs == [configs[2]]
    tuner = SimpleNamespace(configs=list(configs))
    inductor.as_recorded(tuner, kernel("", block_sizes="XBLOCK=512"))
    assert tuner.configs == configs


def test_without_a_gpu_a_registered_kernel_says_that_it_needs_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    inductor.register([kernel("y = 1")])
    with pytest.raises(Unresolved, match="on a GPU only"):
        inductor.kernel_of(NAME, hash_of("y = 1"))


@pytest.mark.gpu
def test_a_compiled_model_replays_as_the_same_triton_kernels(tmp_path, monkeypatch):
    """Compile, record, replay: every Triton launch is the recorded kernel with the recorded geometry."""
    cache = tmp_path / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.LayerNorm(2048))
    compiled = torch.compile(model.cuda().half())
    x = torch.randn(256, 512, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        torch.cuda.synchronize()
        with torch.profiler.profile(record_shapes=True) as session:
            compiled(x)
            torch.cuda.synchronize()
    session.export_chrome_trace(str(tmp_path / "trace.json"))
    plan = read_plan(tmp_path / "trace.json", inductor=[cache])
    triton = [index for index, one in enumerate(plan.signatures) if one.op.startswith("triton_")]
    assert triton and plan.kernels
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    raw = run(
        tmp_path / "plan.json", tmp_path, mode="hot", repeats=3, pace="host", device=torch.device("cuda", 0)
    )
    for index in triton:
        done, recorded = raw.signatures[index], plan.signatures[index]
        assert (done.status, done.reason) == ("ran", "")
        assert [(one.name, one.grid, one.block) for one in done.launches] == [
            (one.name, one.grid, one.block) for one in recorded.launches
        ]
