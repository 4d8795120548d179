"""Who made the bad numbers of a forward: its calls and leaves in the form that `roles` reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.rooms.nan.watch.count import KINDS, Counter, plain_counts
from lab.rooms.nan.watch.forward import Forward, Seen
from lab.rooms.nan.watch.leaves import cached_pair, is_skipped
from lab.rooms.nan.watch.roles import OUT, Call, Leaf, births, roles
from lab.rooms.nan.watch.steps import Row, Step


class Explainer:
    """Explains forwards of one model; it remembers which weights and caches were already bad."""

    def __init__(self, names: list[str], modules: list[nn.Module]) -> None:
        self._names, self._modules = names, modules
        self._weights_bad: set[int] = set()
        self._cache_bad: dict[int, int] = {}  # layer -> step since when

    def check_weights(self, count: Counter) -> list[dict[str, Any]]:
        """Parameters and buffers that hold something bad.

        From now on their modules are known as producers.
        """
        owned = [
            (at, name, tensor)
            for at, module in enumerate(self._modules)
            for name, tensor in [*module.named_parameters(recurse=False), *_buffers(module)]
            if tensor.is_floating_point() and tensor.device.type != "meta"
        ]
        counts = count([tensor for _, _, tensor in owned]) if owned else np.zeros((0, len(KINDS)))
        found = []
        for (at, name, tensor), row in zip(owned, counts, strict=True):
            if row[:3].sum() > 0:
                self._weights_bad.add(at)
                kinds = dict(zip(KINDS, row.tolist(), strict=True))
                path = f"{self._names[at]}.{name}".lstrip(".")
                found.append({"name": path, "shape": _sizes(tensor.shape), **kinds})
        return found

    def explain(
        self, step: Step, forward: Forward, seen: Seen, bad: np.ndarray, earlier: Sequence[Step]
    ) -> None:
        """Fill in the step's births, and whether bad numbers reached the model's output."""
        self._check_caches(step, forward, earlier)
        calls, leaves = self._story(forward, seen, bad)
        step.births = births(calls, leaves)
        outer = {at for at, call in enumerate(calls) if call.parent < 0}
        step.reached_output = any(leaf.bad and leaf.side == OUT and leaf.call in outer for leaf in leaves)

    def rows(self, forward: Forward, seen: Seen, bad: np.ndarray | None) -> list[Row]:
        """The forward call by call."""
        calls, leaves = self._story(forward, seen, bad)
        of_call, shapes, rows = roles(calls, leaves), seen.shapes(), []
        for seq, (at, side, leaf) in enumerate(seen.labels):
            module, kind = self._names[at], type(self._modules[at]).__name__
            u = int(seen.index[seq])
            shape, dtype = (_sizes(shapes[u][0]), _dtype(shapes[u][1])) if u >= 0 else ("", "")
            values = tuple(seen.counts[u].tolist()) if u >= 0 else (-1.0,) * len(KINDS)
            role = of_call[seen.leaf_call[seq]]
            rows.append(Row(seq, module, kind, ("in", "out")[side], leaf, shape, dtype, values, role))
        return rows

    def _story(self, forward: Forward, seen: Seen, bad: np.ndarray | None) -> tuple[list[Call], list[Leaf]]:
        calls = []
        for number, (at, parent, returned) in enumerate(forward.calls):
            layer = getattr(self._modules[at], "layer_idx", None)
            since = self._cache_bad.get(layer) if isinstance(layer, int) else None
            since = since if since is not None and since < forward.number else None
            calls.append(Call(self._names[at], parent, not returned, at in self._weights_bad, since))
            if parent >= 0:
                calls[parent].children.append(number)
        leaves = []
        for seq, (_, side, name) in enumerate(seen.labels):
            unknown = seen.index[seq] < 0
            is_bad = None if unknown else bad is not None and bool(bad[seq])
            leaves.append(Leaf(seq, seen.leaf_call[seq], side, name, is_bad))
        return calls, leaves

    def _check_caches(self, step: Step, forward: Forward, earlier: Sequence[Step]) -> None:
        """Which layers' keys or values are bad, and since when: before this forward, or added by it."""
        bad_steps = [one.number for one in earlier if one.bad_leaves]
        layers = {getattr(self._modules[at], "layer_idx", None) for at, _, _ in forward.calls}
        for layer in (one for one in layers if isinstance(one, int) and one not in self._cache_bad):
            pair = cached_pair(forward.cache, layer)
            if pair is None:
                continue
            if _any_bad([_positions_before(one, step.query_length) for one in pair]):
                self._cache_bad[layer] = bad_steps[-1] if bad_steps else -1
            elif _any_bad(list(pair)):
                self._cache_bad[layer] = step.number


def _positions_before(cached: Tensor, query_length: int) -> Tensor:
    """The positions that were in a cache of shape (batch, heads, positions, dim) before this forward."""
    return cached[..., : max(cached.shape[-2] - query_length, 0), :]


def _buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers except masks, in which -inf is legal."""
    return [(name, tensor) for name, tensor in module.named_buffers(recurse=False) if not is_skipped(name)]


def _any_bad(tensors: list[Tensor]) -> bool:
    return bool(plain_counts(tensors)[:, :3].sum() > 0)


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")
