"""What an experiment changes in a model, and the proof that it did.

Every change counts what it touched, and measures how far the first logits moved against the same model
without it. A change that touched nothing is invalid; one that moved nothing had no effect. Both are shown,
neither is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lab.core.words import plural
from lab.errors import UsageError
from lab.rooms.nan.config import PROVOCATIONS, NanConfig
from lab.rooms.nan.workload.cell import DTYPES, Cell, resolved_attention

SCALED_NAMES = ("scaling", "scale")
PROJECTIONS = ("q_proj", "query", "q")


@dataclass
class Applied:
    """What a change did: modules that could take it, modules that did, and more after the model has run."""

    description: str
    expected: int
    count: int
    values_changed: int | None = None
    logits_moved: float | None = None  # largest difference of the first logits; None: not comparable
    reason: str = ""
    clipped: list[Tensor] = field(default_factory=list)  # counts of altered values, on the device

    @property
    def status(self) -> str:
        """applied, no-effect or invalid."""
        if self.count == 0 or self.count < self.expected:
            return "invalid"
        return "no-effect" if self.logits_moved == 0.0 or self.values_changed == 0 else "applied"

    def as_dict(self) -> dict[str, Any]:
        if self.clipped:
            self.values_changed = int(torch.stack(self.clipped).sum())
        names = ("expected", "count", "values_changed", "logits_moved", "reason", "status")
        return {"what": self.description, **{name: getattr(self, name) for name in names}}


def make_change(experiment: str, model: nn.Module, config: NanConfig) -> Applied | None:
    """Change `model` in place as `experiment` says. None for those that change how it was loaded."""
    if experiment == "attention_scale":
        return scale_attention(model, config.scale)
    if experiment == "attention_clip":
        return clip_attention(model, config.clip)
    if experiment == "layernorm_eps":
        return set_epsilon(model, config.eps)
    return None


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """By class, not by name: `attn` is in q_proj's path too. The innermost ones that hold projections."""
    modules = {
        name: module
        for name, module in model.named_modules()
        if "Attention" in type(module).__name__ and next(module.children(), None) is not None
    }
    return {
        name: module
        for name, module in modules.items()
        if not any(module != name and module.startswith(f"{name}.") for module in modules)
    }


def scale_attention(model: nn.Module, factor: float) -> Applied:
    """Multiply the softmax scale: the module's own, else its queries (the rotation is linear)."""
    modules = attention_modules(model)
    change = Applied(f"attention scores x {factor:g}", len(modules), 0)
    for module in modules.values():
        name = next((name for name in SCALED_NAMES if isinstance(getattr(module, name, None), float)), None)
        query = next(
            (getattr(module, projection) for projection in PROJECTIONS if hasattr(module, projection)), None
        )
        if name is not None:
            setattr(module, name, getattr(module, name) * factor)
        elif query is not None:
            _replace_forward(query, lambda output: output * factor)
        else:
            continue
        change.count += 1
    if change.count < len(modules):
        change.reason = "an attention module has neither its own scale nor a query projection"
    return change


def clip_attention(model: nn.Module, limit: float) -> Applied:
    """Clamp what each attention module puts out, keeping the structure it comes in. NaN stays NaN."""
    modules = attention_modules(model)
    change = Applied(f"attention outputs clamped to +-{limit:g}", len(modules), len(modules))

    def clamped(output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        change.clipped.append((hidden.abs() > limit).sum())
        # A limit beyond the type's largest number touches nothing, and clamp would refuse it.
        clipped = hidden.clamp(-limit, limit) if limit < torch.finfo(hidden.dtype).max else hidden
        return (clipped, *output[1:]) if isinstance(output, tuple) else clipped

    for module in modules.values():
        _replace_forward(module, clamped)
    return change


def set_epsilon(model: nn.Module, epsilon: float) -> Applied:
    """Set the epsilon of every norm (LayerNorm or RMSNorm), whatever the attribute is called."""
    norms = [module for module in model.modules() if type(module).__name__.endswith("Norm")]
    change = Applied(f"epsilon of every norm = {epsilon:g}", len(norms), 0)
    for module in norms:
        name = next((name for name in ("variance_epsilon", "eps") if hasattr(module, name)), None)
        if name is None:
            change.reason = f"{type(module).__name__} has no known epsilon attribute"
            continue
        setattr(module, name, epsilon)
        change.count += 1
    return change


def proof_of_loading(experiment: str, model: nn.Module, cell: Cell) -> Applied | None:
    """For experiments that change how the model is made: what of it is really there."""
    if experiment == "bfloat16":
        floating = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
        right = [weight for weight in floating if weight.dtype is DTYPES["bfloat16"]]
        return Applied("weights in bfloat16", len(floating), len(right))
    if experiment == "eager":
        modules = attention_modules(model)
        eager = resolved_attention(model) == "eager"
        return Applied("attention modules that run eagerly", len(modules), len(modules) if eager else 0)
    if experiment == "8bit" and not cell.skipped:
        linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
        eight = [linear for linear in linears if type(linear).__name__ == "Linear8bitLt"]
        return Applied("linear layers in 8 bits", 1, len(eight))
    return None


def _replace_forward(module: nn.Module, alter: Callable[[Any], Any]) -> None:
    """Pass what `module` returns through `alter`; an instance attribute, so that every call is met."""
    forward = module.forward

    def altered(*args: Any, **kwargs: Any) -> Any:
        return alter(forward(*args, **kwargs))

    module.__dict__["forward"] = altered


# Provoking: a known cause planted in one layer of a random-weight model, to compare what is found with what
# was planted. Scales are calibrated by one plain forward: the planted numbers overflow half whatever the
# width of the model, and what comes before them stays well inside.

QUERY_PEAK = 2000.0  # largest |q| and |k|: finite in half, their products are not
GATE_PEAK, UP_PEAK = 200.0, 20000.0  # of the MLP's two factors, whose product exceeds 65504


@torch.no_grad()
def provoke(model: Any, kind: str, layer: int | None, ids: Tensor, mask: Tensor) -> dict[str, Any]:
    """Plant it; returns what, where, and the module that must be found.

    Raises UsageError for a model without such layers.
    """
    blocks = getattr(getattr(model, "model", None), "layers", None)
    if blocks is None or not hasattr(blocks[0], "self_attn") or not hasattr(blocks[0], "mlp"):
        raise UsageError(
            f"--provoke {kind} needs a model whose layers have self_attn and mlp",
            fix="use --model tiny or 7b-shape",
        )
    index = len(blocks) // 2 if layer is None else layer
    if index >= len(blocks):
        raise UsageError(
            f"no layer {index}: the model has {plural(len(blocks), 'layer')}", fix="lower --provoke-layer"
        )
    block, name = blocks[index], f"model.layers.{index}"
    if kind == "scores":
        _scale_to(
            model, [block.self_attn.q_proj, block.self_attn.k_proj], [QUERY_PEAK, QUERY_PEAK], ids, mask
        )
        expected = f"{name}.self_attn"
    elif kind == "overflow":
        _scale_to(model, [block.mlp.gate_proj, block.mlp.up_proj], [GATE_PEAK, UP_PEAK], ids, mask)
        expected = f"{name}.mlp"
    elif kind == "nan-weight":
        block.mlp.up_proj.weight[0, 0] = float("nan")
        expected = f"{name}.mlp.up_proj"
    else:
        mask_one_row(block.self_attn)
        expected = f"{name}.self_attn"
    return {"kind": kind, "layer": index, "expected": expected, "what": PROVOCATIONS[kind]}


def _scale_to(model: Any, linears: list[nn.Module], peaks: list[float], ids: Tensor, mask: Tensor) -> None:
    """Scale each layer's weight so that its largest output on this prompt is its peak."""
    largest: dict[int, float] = {}
    handles = []
    for number, linear in enumerate(linears):

        def note(_module: nn.Module, _inputs: Any, output: Tensor, number: int = number) -> None:
            largest[number] = max(largest.get(number, 0.0), float(output.abs().max()))

        handles.append(linear.register_forward_hook(note))
    try:
        model(input_ids=ids, attention_mask=mask)
    finally:
        for handle in handles:
            handle.remove()
    for number, (linear, peak) in enumerate(zip(linears, peaks, strict=True)):
        weight: Any = linear.weight
        weight.mul_(peak / largest[number])


def mask_one_row(attention: nn.Module) -> None:
    """Mask all keys of the last query with -inf, which a plain softmax turns into NaN."""
    forward = attention.forward

    def masked(*args: Any, **kwargs: Any) -> Any:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        queries = hidden.shape[1]
        keys = queries + cached_length(kwargs, getattr(attention, "layer_idx", 0))
        row = torch.zeros(hidden.shape[0], 1, queries, keys, dtype=hidden.dtype, device=hidden.device)
        row[:, :, -1, :] = float("-inf")
        mask = kwargs.get("attention_mask")
        if isinstance(mask, Tensor) and mask.is_floating_point() and mask.dim() == 4:
            row = row + mask[..., : row.shape[-1]]
        kwargs["attention_mask"] = row
        return forward(*args, **kwargs)

    attention.__dict__["forward"] = masked


def cached_length(kwargs: dict[str, Any], layer: int) -> int:
    """Positions of this layer already in the cache."""
    caches = (value for value in kwargs.values() if hasattr(value, "get_seq_length"))
    return next((int(cache.get_seq_length(layer)) for cache in caches), 0)
