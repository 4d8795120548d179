"""FLOPs and least bytes of attention: 2 B H N_q N_kv (d_qk + d_v), and two and a half times that backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lab.perfmodel.calls import OpCall, Work, count

_BACKWARD_FACTOR = 2.5  # five products where forward has two (FlashAttention-2, section 4.1)


@dataclass(frozen=True)
class _Layout:
    """Where an attention op has its query (key and value follow), dropout and causal flag; and its axes.

    heads_first: [B, H, N, d], torch's own layout; else [B, N, H, d], flash-attn's.
    """

    query: int
    dropout: int
    causal: int
    heads_first: bool = True


ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": _Layout(0, 3, 4),
    "aten::_scaled_dot_product_efficient_attention": _Layout(0, 5, 6),
    "aten::_scaled_dot_product_cudnn_attention": _Layout(0, 5, 6),
    "aten::_scaled_dot_product_flash_attention_backward": _Layout(1, 10, 11),
    "aten::_scaled_dot_product_efficient_attention_backward": _Layout(1, 9, 11),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Layout(1, 13, 14),
    "flash_attn::_flash_attn_forward": _Layout(0, 3, 5, heads_first=False),
    "flash_attn::_flash_attn_backward": _Layout(1, 9, 11, heads_first=False),
    "aiter::mha_fwd": _Layout(0, 3, 5, heads_first=False),
    "aiter::fmha_v3_fwd": _Layout(0, 3, 5, heads_first=False),
}


def attention_work(call: OpCall) -> Work | None:
    """Return the work of one attention op; None where q, k or v was not recorded with four axes."""
    layout = ATTENTION[call.name]
    indices = range(layout.query, layout.query + 3)
    q, k, v = (call.tensor(index) for index in indices)
    item = call.element_bytes(layout.query)
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4 or not item:
        return None
    heads, tokens = (1, 2) if layout.heads_first else (2, 1)
    batch, heads_q, n_q, d_qk = q[0], q[heads], q[tokens], q[3]
    n_kv, d_v = k[tokens], v[3]
    causal = call.flag(layout.causal)
    flops = 2 * batch * heads_q * _visible_pairs(n_q, n_kv, causal=causal) * (d_qk + d_v)
    elements = count(q) + count(k) + count(v) + batch * heads_q * n_q * d_v
    backward = "backward" in call.name
    if backward:  # and the gradients of q, k and v
        flops *= _BACKWARD_FACTOR
        elements += count(q) + count(k) + count(v)
    params: dict[str, Any] = {
        "B": batch,
        "N_Q": n_q,
        "H_Q": heads_q,
        "N_KV": n_kv,
        "H_KV": k[heads],
        "d_h_qk": d_qk,
        "d_h_v": d_v,
    }
    if backward:
        names = ("q_stride", "k_stride", "v_stride")
        params |= {name: call.stride(index) for name, index in zip(names, indices, strict=True)}
    params |= {"dropout": call.number(layout.dropout), "causal": causal}
    params |= {
        "flash_impl": "flash" in call.name,
        "dtype_A_B": (call.dtype(layout.query), call.dtype(layout.query + 1)),
    }
    kind = "SDPA_bwd" if backward else "SDPA_fwd"
    return Work(kind, params, flops, elements * item, "matrix", call.dtype(layout.query))


def _visible_pairs(n_q: int, n_kv: int, *, causal: bool) -> float:
    """Count pairs of query and key; a causal mask hides half of the upper left square, as in TraceLens."""
    if not causal:
        return n_q * n_kv
    square = min(n_q, n_kv)
    return square * square / 2 + max(n_q - n_kv, 0) * n_kv
