"""Tensor parallel by DTensor: the layers of Llama and BLOOM split over ranks, everything else whole on each
rank.

Column-parallel layers keep rows of their weight, row-parallel ones columns; a layer has one all-reduce after
attention and one after the MLP. Tested over two gloo ranks against the unsharded model's logits and tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lab.errors import UsageError

# model_type -> (path of the layers, column-parallel, row-parallel), paths below a layer.
PLANS = {
    "llama": (
        "model.layers",
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"),
        ("self_attn.o_proj", "mlp.down_proj"),
    ),
    "bloom": (
        "transformer.h",
        ("self_attention.query_key_value", "mlp.dense_h_to_4h"),
        ("self_attention.dense", "mlp.dense_4h_to_h"),
    ),
}


def shard(model: Any, ranks: int, device: torch.device) -> Any:
    """Split the CPU model over `ranks`, of which this process is one, and move it to `device`; changed in
    place.

    A layer moves when it is split, so a GPU never holds more than its share. Every rank has loaded the same
    weights, so nothing is sent. Raises UsageError for a model without a plan, or with heads that `ranks` does
    not divide.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    family = model.config.model_type
    if family not in PLANS:
        raise UsageError(f"no tensor parallel plan for {family!r}", fix=f"one of: {', '.join(PLANS)}")
    _check_heads(model.config, ranks)
    path, columns, rows = PLANS[family]
    mesh = init_device_mesh(device.type, (ranks,))
    for layer in model.get_submodule(path):
        styles = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
        _without_scatter(parallelize_module, layer, mesh, styles)
        _fit_attention(family, layer, ranks, dist.get_rank())
        layer.to(device)
    return model.to(device)


def _without_scatter(parallelize: Any, layer: nn.Module, mesh: Any, styles: dict[str, Any]) -> None:
    """Split without communication if this torch allows it, because every rank holds the same weights."""
    import inspect

    options = {"src_data_rank": None} if "src_data_rank" in inspect.signature(parallelize).parameters else {}
    parallelize(layer, mesh, styles, **options)


def _check_heads(config: Any, ranks: int) -> None:
    heads = {
        "attention heads": config.num_attention_heads,
        "key-value heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
    }
    for part, count in heads.items():
        if count % ranks:
            raise UsageError(f"{ranks} ranks do not divide the {count} {part}", fix=f"a divisor of {count}")


def _fit_attention(family: str, layer: nn.Module, ranks: int, rank: int) -> None:
    """Attention reshapes by a stored number of heads: set it to that of this rank."""
    if family == "bloom":
        attention: Any = layer.get_submodule("self_attention")
        _divide(attention, ("num_heads", "hidden_size", "split_size"), ranks)
        hook = _alibi_of_rank(attention.num_heads, ranks, rank)
        attention.register_forward_pre_hook(hook, with_kwargs=True)
        return
    # transformers up to 4.46 reshapes by these; newer versions derive the number from the shape.
    _divide(layer.get_submodule("self_attn"), ("num_heads", "num_key_value_heads", "hidden_size"), ranks)


def _divide(module: nn.Module, names: tuple[str, ...], ranks: int) -> None:
    for name in names:
        if isinstance(getattr(module, name, None), int):
            setattr(module, name, getattr(module, name) // ranks)


def _alibi_of_rank(heads: int, ranks: int, rank: int) -> Any:
    """A hook that cuts BLOOM's alibi (batch * all heads, 1, keys) down to this rank's `heads`.

    BLOOM's fused weight has rows [head, (q, k, v), dim], so a cut of its rows keeps whole heads.
    """

    def own(alibi: Tensor) -> Tensor:
        of_all = alibi.view(-1, heads * ranks, *alibi.shape[1:])
        return of_all[:, rank * heads : (rank + 1) * heads].reshape(-1, *alibi.shape[1:])

    def hook(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if "alibi" in kwargs:
            return args, {**kwargs, "alibi": own(kwargs["alibi"])}
        return (*args[:2], own(args[2]), *args[3:]), kwargs  # (hidden_states, residual, alibi, ...)

    return hook
