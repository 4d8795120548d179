"""Memory-efficient attention on a CPU, for tests: torch's operator, and seeds as a GPU gives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch


@contextmanager
def efficient_attention_on_a_cpu() -> Iterator[None]:
    """Without dropout its seed and offset are other numbers at every call, as memory that nobody wrote is."""
    garbage = count(0x5EED)

    def forward(q, k, v, bias, with_lse, dropout_p=0.0, is_causal=False, *, scale=None):
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        fresh = [torch.initial_seed(), 0] if dropout_p else [next(garbage), next(garbage)]
        seed, offset = (torch.full((), one, dtype=torch.int64) for one in fresh)
        return scores.softmax(-1) @ v, scores.logsumexp(-1), seed, offset

    def backward(g, q, k, v, bias, out, lse, seed, offset, dropout_p, mask, is_causal=False, *, scale=None):
        factor = q.shape[-1] ** -0.5
        shares = (q @ k.transpose(-1, -2) * factor).softmax(-1)
        of_shares = g @ v.transpose(-1, -2)
        of_scores = shares * (of_shares - (of_shares * shares).sum(-1, keepdim=True)) * factor
        return of_scores @ k, of_scores.transpose(-1, -2) @ q, shares.transpose(-1, -2) @ g, None

    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("_scaled_dot_product_efficient_attention", forward, "CPU")
        library.impl("_scaled_dot_product_efficient_attention_backward", backward, "CPU")
        yield
    finally:
        library._destroy()


class Attention(torch.nn.Module):
    """Of (batch, time, 8) over itself, with two heads."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout, self.inside = dropout, torch.nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.inside(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        op = torch.ops.aten._scaled_dot_product_efficient_attention.default
        return op(q, k, v, None, True, self.dropout)[0]
