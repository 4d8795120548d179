"""Two gloo ranks: the same bits when clean; a fault on rank 1 is rank 1's, and nobody hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from lab.rooms.nan.guarded.read import (  # noqa: E402
    read,
    verdict_of,
)
from tests.conftest import ROOT, free_port  # noqa: E402

if not torch.distributed.is_available() or not hasattr(torch.distributed, "device_mesh"):
    pytest.skip("this torch has no FSDP2 on a CPU", allow_module_level=True)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    env = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.rooms.nan.watch.guard.two_ranks", str(out)],
            cwd=ROOT,
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [one.communicate(timeout=900) for one in started]
    assert [one.returncode for one in started] == [0, 0], texts[0][1][-2000:] + texts[1][1][-2000:]
    lines = [json.loads(line) for text, _ in texts for line in text.splitlines() if line.startswith("{")]
    return {(one["wrap"], one["how"], one.get("on_bad", "keep"), one["rank"]): one for one in lines}, out


WRAPS = ("ddp", "fsdp", "tensor_parallel")


@pytest.mark.parametrize("wrap", WRAPS)
def test_clean_training_is_the_same_bits_and_no_alarm_on_both_ranks(both, wrap):
    for rank in range(2):
        found = both[0][wrap, "clean", "keep", rank]
        assert found["same"] and found["status"] == "clean" and found["failed"] == 0


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize(
    ("how", "stages"), [("forward", {"forward"}), ("backward", {"act_grads"}), ("weight", {"weights_before"})]
)
def test_the_rank_that_made_it_is_named_and_the_other_never_claims_it(both, wrap, how, stages):
    for on_bad in ("keep", "replay"):
        mine, other = (both[0][wrap, how, on_bad, rank] for rank in (1, 0))
        assert mine["status"] == other["status"] == "bad" and mine["failed"] == other["failed"] == 0
        assert mine["stage"] in stages and mine["step"] == 1, mine
        came = other["stage"] == "after_reduce" or other["step"] > 1
        assert came or other["unsure"], other
        assert other["stage"] == "after_reduce" or other["unsure"], other


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("how", ["forward", "backward", "weight"])
def test_the_joined_records_name_rank_one(both, wrap, how):
    found = read([both[1] / f"{wrap}_{how}"])
    verdict = verdict_of([record for _, record in found.records])
    assert (verdict.status, verdict.rank, verdict.first.step) == ("bad", 1, 1)
    assert verdict.missing_ranks == [] and not found.problems


def test_a_replay_under_ddp_names_the_operator_on_its_rank(both):
    assert both[0]["ddp", "forward", "replay", 1]["op"] == "aten.div.Tensor"
    assert both[0]["fsdp", "forward", "replay", 1]["op"].startswith("a forward holds collectives")
