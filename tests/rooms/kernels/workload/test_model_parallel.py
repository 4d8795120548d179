"""Tensor parallel over two gloo ranks computes what the unsharded model computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from lab.errors import UsageError
from tests.conftest import ROOT

pytestmark = pytest.mark.torch
TORCHRUN = """
    -m torch.distributed.run --nproc_per_node=2
    --rdzv_backend=c10d --rdzv_endpoint=localhost:0 -m
"""
CHECK = "tests.rooms.kernels.workload.parallel_check"


@pytest.fixture(scope="module")
def compared():
    command = [sys.executable, *TORCHRUN.split(), CHECK, "tiny-bloom", "tiny-llama"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return {
        line["model"]: line
        for line in map(json.loads, filter(lambda text: text.startswith("{"), done.stdout.splitlines()))
    }


@pytest.mark.parametrize("model", ["tiny-bloom", "tiny-llama"])
def test_logits_and_tokens_equal_those_of_the_unsharded_model(compared, model):
    found = compared[model]
    assert found["error"] < 1e-5 * max(found["scale"], 1.0)
    assert found["same_tokens"]


@pytest.mark.parametrize("model", ["tiny-bloom", "tiny-llama"])
def test_a_rank_holds_half_of_the_rows(compared, model):
    assert 2 * compared[model]["local_rows"] == compared[model]["rows"]


def test_a_model_without_a_plan_and_heads_that_do_not_divide_are_refused():
    import torch

    from lab.rooms.kernels.workload.main import _check_heads, shard

    class Config:
        model_type, num_attention_heads = "gpt2", 4

    class Model:
        config = Config

    with pytest.raises(UsageError, match="no tensor parallel plan for 'gpt2'"):
        shard(Model, 2, torch.device("cpu"))
    with pytest.raises(UsageError, match="3 ranks do not divide the 4 attention heads"):
        _check_heads(Config, 3)
