"""Run by torchrun: the sharded model's logits and tokens against the unsharded one's.

Prints one line per model, on rank 0.
"""

from __future__ import annotations

import copy
import json
import sys

import torch
import torch.distributed as dist

from lab.rooms.kernels.config import KernelsConfig
from lab.rooms.kernels.workload.main import shard
from lab.rooms.kernels.workload.model import load
from lab.workload.rank import RankContext, process_group
from lab.workload.start import leave_group


def tokens(model, ids):
    model.generation_config.eos_token_id = None
    return model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=5)[
        0
    ].tolist()


def compare(name: str) -> dict[str, object]:
    device = torch.device("cpu")
    whole = load(KernelsConfig(model=name, weights="random", seed=1), device, on_cpu=True).model
    # Weights far from their small beginnings, so that a wrong head would show.
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    for parameter in whole.parameters():
        dist.broadcast(parameter.data, 0)
    parted = shard(copy.deepcopy(whole), dist.get_world_size(), device)
    ids = torch.arange(20, 31).unsqueeze(0)
    with torch.no_grad():
        expected, found = whole(ids).logits, parted(ids).logits
        same = tokens(whole, ids) == tokens(parted, ids)
    found = found.full_tensor() if hasattr(found, "full_tensor") else found
    layer = next(
        p for n, p in parted.named_parameters() if n.endswith(("query_key_value.weight", "q_proj.weight"))
    )
    return {
        "model": name,
        "error": float((expected - found).abs().max()),
        "scale": float(expected.abs().max()),
        "same_tokens": same,
        "local_rows": layer.to_local().shape[0],
        "rows": layer.shape[0],
    }


if __name__ == "__main__":
    context = RankContext.from_env()
    with process_group(context, torch.device("cpu")):
        torch.manual_seed(dist.get_rank())
        for name in sys.argv[1:]:
            found = compare(name)
            if dist.get_rank() == 0:
                print(json.dumps(found), flush=True)
    leave_group(context)
