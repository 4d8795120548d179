"""The two models that the sweep trains. Both can be built on the meta device and filled later.

B = batch, T = tokens per sample, D = model_dim, V = vocab_size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.rooms.sweep.config.train import DatasetConfig, ModelConfig

Batch = tuple[Tensor, ...]
Device = str | torch.device


class RankingEncoder(nn.Module):
    """The published ranking encoder (ROCm/aorta): one score per token from sparse ids and dense features."""

    def __init__(self, config: ModelConfig, device: Device) -> None:
        super().__init__()
        dense_width = config.num_dense_features * config.dense_dim
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_dim, device=device)
        self.sparse_proj = nn.Linear(config.embedding_dim, config.model_dim, device=device)
        self.dense_proj = nn.Linear(dense_width, config.model_dim, device=device)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                config.model_dim,
                config.num_heads,
                config.mlp_hidden_dim,
                config.dropout,
                activation="gelu",
                batch_first=True,
                device=device,
            )
            for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(config.model_dim, device=device)
        self.scorer = nn.Sequential(
            nn.Linear(config.model_dim, config.mlp_hidden_dim, device=device),
            nn.GELU(),
            nn.Linear(config.mlp_hidden_dim, 1, device=device),
        )

    def forward(self, sparse_ids: Tensor, dense: Tensor) -> Tensor:
        """sparse_ids [B, T, ids] int64, dense [B, T, features * dense_dim] -> logits [B, T]."""
        x = self.sparse_proj(self.embedding(sparse_ids).mean(dim=2)) + self.dense_proj(dense)
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.scorer(self.norm(x))
        return scores.squeeze(-1)


class CausalDecoder(nn.Module):
    """A causal language model: RMSNorm, attention, SwiGLU, no biases, no position encoding.

    Positions cost no GEMM, so they are left out: the sweep measures time, not the quality of text.
    """

    def __init__(self, config: ModelConfig, device: Device) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.model_dim, device=device)
        self.layers = nn.ModuleList(DecoderLayer(config, device) for _ in range(config.num_layers))
        self.norm = RmsNorm(config.model_dim, device)
        self.head = nn.Linear(config.model_dim, config.vocab_size, bias=False, device=device)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [B, T] int64 -> logits [B, T, V]."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class DecoderLayer(nn.Module):
    """Pre-norm layer: x + attention(norm(x)), then x + swiglu(norm(x)); [B, T, D] -> [B, T, D]."""

    def __init__(self, config: ModelConfig, device: Device) -> None:
        super().__init__()
        dim, hidden = config.model_dim, config.mlp_hidden_dim
        self.num_heads = config.num_heads
        self.attention_norm = RmsNorm(dim, device)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False, device=device)
        self.out = nn.Linear(dim, dim, bias=False, device=device)
        self.mlp_norm = RmsNorm(dim, device)
        self.gate = nn.Linear(dim, hidden, bias=False, device=device)
        self.up = nn.Linear(dim, hidden, bias=False, device=device)
        self.down = nn.Linear(hidden, dim, bias=False, device=device)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attention(self.attention_norm(x))
        h = self.mlp_norm(x)
        delta: Tensor = self.down(F.silu(self.gate(h)) * self.up(h))
        return x + delta

    def _attention(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.num_heads, dim // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = causal_attention(query, key, value)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, dim))
        return projected


class RmsNorm(nn.Module):
    """x / rms(x) * weight over the last axis, computed in float32."""

    def __init__(self, dim: int, device: Device, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim, device=device))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Scaled dot-product attention, each token seeing itself and the past; all [B, heads, T, head_dim]."""
    if hasattr(F, "scaled_dot_product_attention"):
        mixed: Tensor = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed
    return plain_causal_attention(query, key, value)


def plain_causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention as plain matrix algebra: for torch < 2, and the reference implementation in tests."""
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
    weights: Tensor = scores.masked_fill(future, float("-inf")).float().softmax(-1)
    return weights.to(value.dtype) @ value


def build_model(config: ModelConfig, device: Device) -> nn.Module:
    """The model of `config.kind` on `device` ("meta" allocates nothing); call `init_weights` before use."""
    return RankingEncoder(config, device) if config.kind == "encoder" else CausalDecoder(config, device)


def layer_class(config: ModelConfig) -> type[nn.Module]:
    """The class of the repeated layer: the unit that FSDP shards."""
    return nn.TransformerEncoderLayer if config.kind == "encoder" else DecoderLayer


def init_weights(model: nn.Module) -> None:
    """Fill all parameters in place: matrices normal (std 0.02), biases 0, norm weights 1."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            else:
                nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)


def make_batch(
    model: ModelConfig, data: DatasetConfig, batch_size: int, device: torch.device, generator: torch.Generator
) -> Batch:
    """Random inputs, made on `device`.

    Encoder: (sparse_ids [B, T, ids], dense [B, T, features * dense_dim], labels [B, T], weights [B, T]);
    decoder: (ids [B, T + 1],).
    """
    shape = (batch_size, data.sequence_length)

    def integers(high: int, *size: int) -> Tensor:
        return torch.randint(high, size, device=device, generator=generator)

    if model.kind == "decoder":
        return (integers(data.vocab_size, batch_size, data.sequence_length + 1),)
    width = data.num_dense_features * data.dense_dim
    dense = torch.randn((*shape, width), device=device, generator=generator)
    weights = torch.rand(shape, device=device, generator=generator) + 0.5
    return (
        integers(data.vocab_size, *shape, data.sparse_features),
        dense,
        integers(2, *shape).float(),
        weights,
    )


def batch_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The training loss, a float32 scalar: weighted BCE with logits (encoder) or cross entropy (decoder)."""
    if len(batch) == 1:
        ids = batch[0]
        logits = model(ids[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    sparse_ids, dense, labels, weights = batch
    logits = model(sparse_ids, dense)
    return F.binary_cross_entropy_with_logits(logits.float(), labels, weight=weights)
