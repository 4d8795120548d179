"""The measured Transformer, with a range around every part of attention.

B = batch, T = tokens, d = width, h = heads, e = d / h, V = vocabulary. Pre-norm, RMSNorm, rotary positions,
SwiGLU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import record_function

from lab.rooms.nsys.flops import ModelSpec

Softmax = Callable[[Tensor], Tensor]
Mark = Callable[[str], contextlib.AbstractContextManager[None]]


class Transformer(nn.Module):
    """Token ids [B, T] -> logits [B, T, V]. `attention` is one object shared by all layers."""

    def __init__(self, spec: ModelSpec, context: int, attention: Attention, device: str = "cpu") -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.vocab, spec.d_model, device=device)
        self.layers = nn.ModuleList(Layer(spec, attention, device) for _ in range(spec.layers))
        self.norm = RmsNorm(spec.d_model, device)
        self.head = nn.Linear(spec.d_model, spec.vocab, bias=False, device=device)
        cos, sin = rotary_tables(context, spec.d_head)
        self.register_buffer("cos", cos.to(device), persistent=False)
        self.register_buffer("sin", sin.to(device), persistent=False)
        future = torch.ones(context, context, dtype=torch.bool, device=device).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.future)
        logits: Tensor = self.head(self.norm(x))
        return logits

    @torch.no_grad()
    def fill(self, seed: int) -> Transformer:
        """Weights from a normal distribution of deviation 0.02, norms 1; the same for the same seed."""
        torch.manual_seed(seed)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02) if weight.dim() > 1 else nn.init.ones_(weight)
        return self


class Layer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)); [B, T, d] -> [B, T, d]."""

    def __init__(self, spec: ModelSpec, attention: Attention, device: str) -> None:
        super().__init__()
        d, ff = spec.d_model, spec.d_ff
        self.heads, self.attention = spec.heads, attention
        self.attention_norm, self.feed_norm = RmsNorm(d, device), RmsNorm(d, device)
        widths = [3 * d] if spec.fused_qkv else [d, d, d]
        self.qkv = nn.ModuleList(nn.Linear(d, width, bias=False, device=device) for width in widths)
        self.out = nn.Linear(d, d, bias=False, device=device)
        self.gate = nn.Linear(d, ff, bias=False, device=device)
        self.up = nn.Linear(d, ff, bias=False, device=device)
        self.down = nn.Linear(ff, d, bias=False, device=device)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, future: Tensor) -> Tensor:
        x = x + self._attend(self.attention_norm(x), cos, sin, future)
        y = self.feed_norm(x)
        change: Tensor = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + change

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, future: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = [linear(x) for linear in self.qkv]
        query, key, value = parts if len(parts) == 3 else parts[0].chunk(3, dim=-1)
        query, key, value = (
            y.reshape(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for y in (query, key, value)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = self.attention(query, key, value, future)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return projected


class RmsNorm(nn.Module):
    """x / rms(x) * weight over the last axis, in float32."""

    def __init__(self, width: int, device: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width, device=device)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Attention:
    """Causal attention, each part under a range that the analysis looks for.

    annotated: False for the same operations without the ranges.
    """

    def __init__(self, softmax: str, mark: Mark, *, annotated: bool) -> None:
        self.softmax = SOFTMAX[softmax]
        self.mark: Mark = mark if annotated else lambda name: contextlib.nullcontext()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, future: Tensor) -> Tensor:
        """query, key, value [B, h, T, e]; future [T, T]: true where masked -> [B, h, T, e]."""
        with self.mark("scaled_dot_product_attention"):
            with self.mark("computing_attention_scores"):
                scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
            with self.mark("applying_mask"):
                scores = scores.masked_fill(future, float("-inf"))
            with self.mark("computing_softmax"):
                weights = self.softmax(scores)
            with self.mark("final_matmul"):
                return weights.to(value.dtype) @ value


def plain_softmax(x: Tensor) -> Tensor:
    """The course's softmax in five kernels, over the last axis, in float32."""
    wide = x.float()
    powers = torch.exp(wide - wide.max(dim=-1, keepdim=True).values)
    return powers / powers.sum(dim=-1, keepdim=True)


def fused_softmax(x: Tensor) -> Tensor:
    """torch's softmax: one kernel."""
    return torch.softmax(x.float(), dim=-1)


SOFTMAX: dict[str, Softmax] = {"plain": plain_softmax, "fused": fused_softmax}


def rotary_tables(context: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, e / 2] of rotary positions (Su et al. 2021), base 10 000."""
    rates = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.arange(context, dtype=torch.float32)[:, None] * rates[None, :]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each half-pair of x [B, h, T, e] by its token's angle."""
    left, right = x.chunk(2, dim=-1)
    turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
    return turned.to(x.dtype)


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Cross entropy of predicting ids[:, 1:] from ids[:, :-1]; ids [B, T + 1] -> float32 scalar."""
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def marker(*, nvtx: bool) -> Mark:
    """A context manager that names a range for torch.profiler and, on a GPU, for nsys (or roctx)."""

    @contextlib.contextmanager
    def mark(name: str) -> Iterator[None]:
        with record_function(name):
            if not nvtx:
                yield
                return
            torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
            try:
                yield
            finally:
                torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]

    return mark
