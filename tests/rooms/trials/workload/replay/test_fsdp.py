"""Sharded models on two ranks of gloo: equal runs agree to the bit, and a disturbed rank is named."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
fsdp = pytest.importorskip("torch.distributed.fsdp")
if not hasattr(fsdp, "fully_shard"):
    pytest.skip("this torch has no fully_shard", allow_module_level=True)

from torch import nn  # noqa: E402

from lab.compare.same.steps import judge_steps  # noqa: E402
from lab.rooms.trials.workload.replay.training import Training  # noqa: E402
from tests.conftest import free_port  # noqa: E402
from tests.rooms.trials.workload.replay.test_planted import records  # noqa: E402

pytestmark = pytest.mark.torch
STEP = 2  # in which the planted rank is disturbed


def train(out, rank: int, *, disturbed: bool, level: str) -> None:
    """Three steps of a small sharded model; `disturbed` changes one value that the middle layer makes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3))
    for layer in model[::2]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    now = [0]

    def disturb(module, given, made):
        return made + 1e-3 if disturbed and now[0] == STEP else made

    model[3].register_forward_hook(disturb)
    recorder = Training(out, steps=3, repeats=1, level=level, leave=False)
    recorder.start()
    try:
        for number in range(3):
            now[0] = number + 1
            torch.manual_seed(10 * number + rank)
            model(torch.randn(5, 8)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        recorder.stop(ended=True)


def _rank(rank: int, port: int, folder) -> None:
    torch.set_num_threads(1)
    where = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    for name, level in (("clean", "op"), ("planted", "op"), ("coarse", "module")):
        for run in range(2):
            disturbed = name != "clean" and run == 1 and rank == 1
            train(folder / name / f"run-{run}", rank, disturbed=disturbed, level=level)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_sharded_models_are_compared_and_the_first_place_of_a_disturbed_rank_is_named(tmp_path):
    torch.multiprocessing.spawn(_rank, args=(free_port(), tmp_path), nprocs=2)
    clean = judge_steps(records(tmp_path / "clean"))
    assert (clean.outcome, clean.first_place, clean.steps, clean.repeats) == ("bitwise", None, 3, 2 * 2 * 3)
    for name in ("planted", "coarse"):
        first = judge_steps(records(tmp_path / name)).first_place
        assert (first.step, first.rank, first.direction) == (STEP, 1, "forward"), name
        assert first.module == "3", name
    names = {row.op for one in records(tmp_path / "clean") for row in one.recording.rows}
    # What is gathered and scattered is seen as it is written, and never a buffer before it is.
    assert {"c10d._allgather_base_.default", "c10d._reduce_scatter_base_.default"} <= names
    assert {"fsdp.split_with_sizes_copy.default", "fsdp.chunk_cat.default"} <= names


def test_a_checksum_leaves_a_storage_resizable_and_skips_one_that_is_freed():
    from lab.workload.recorder.bits import dense, host_sum

    one = torch.arange(7.0)
    before = host_sum(one)
    storage = one.untyped_storage()
    storage.resize_(0)  # as FSDP frees a gathered weight; refused after Tensor.numpy()
    assert dense(one) is None
    storage.resize_(28)
    one.copy_(torch.arange(7.0))
    assert host_sum(one) == before
