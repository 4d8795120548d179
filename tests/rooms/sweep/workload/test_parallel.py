"""Sharded models against the replicated one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")

from lab.rooms.sweep.config.load import load_train_config  # noqa: E402
from lab.rooms.sweep.workload import trainer  # noqa: E402
from lab.rooms.sweep.workload.model import (  # noqa: E402
    batch_loss,
    make_batch,
)
from lab.workload.rank import RankContext, process_group  # noqa: E402

pytestmark = pytest.mark.torch
TORCHRUN_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def alone_in_a_process_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch.distributed wraps it
    for name in TORCHRUN_NAMES:
        monkeypatch.delenv(name, raising=False)
    context = RankContext(rank=0, local_rank=0, world_size=1)
    with process_group(context, torch.device("cpu")):
        yield


@pytest.mark.usefixtures("alone_in_a_process_group")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_the_older_fsdp_gives_the_gradient_of_ddp(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    # On a CPU FSDP1 cannot copy weights between ranks; one rank needs no copy.
    config = load_train_config(
        "tiny", [f"model.kind={kind}", "model.dropout=0.0", "fsdp.sync_module_states=false"]
    )
    device, losses, norms = torch.device("cpu"), [], []
    for parallel in ("ddp", "fsdp1"):
        monkeypatch.setattr(trainer, "choose_parallel", lambda _, form=parallel: form)
        torch.manual_seed(0)
        model = trainer.ParallelModel(config, device)
        generator = torch.Generator().manual_seed(1)
        loss = batch_loss(model.called, make_batch(config.model, config.dataset, 4, device, generator))
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.stack([p.grad.norm() for p in model.wrapped.parameters()]).norm().item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
