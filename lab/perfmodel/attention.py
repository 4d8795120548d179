"""FLOPs and least bytes of attention: 2 B H N_q N_kv (d_qk + d_v), and two and a half times that backward."""

from __future__ import annotations

from typing import Any

from lab.perfmodel.calls import OpCall, Work, count, op_of

_BACKWARD_FACTOR = 2.5  # five products where forward has two (FlashAttention-2, section 4.1)


def attention_work(call: OpCall) -> Work | None:
    """Return the work of one attention op; None where q, k or v was not recorded with four axes."""
    arguments = op_of(call.name).arguments
    query = arguments["query"]
    indices = range(query, query + 3)
    q, k, v = (call.tensor(index) for index in indices)
    item = call.element_bytes(query)
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4 or not item:
        return None
    heads, tokens = (1, 2) if "heads_first" in arguments else (2, 1)
    batch, heads_q, n_q, d_qk = q[0], q[heads], q[tokens], q[3]
    n_kv, d_v = k[tokens], v[3]
    causal = call.flag(arguments["causal"])
    flops = 2 * batch * heads_q * _visible_pairs(n_q, n_kv, causal=causal) * (d_qk + d_v)
    elements = count(q) + count(k) + count(v) + batch * heads_q * n_q * d_v
    if backward := "backward" in call.name:  # and the gradients of q, k and v
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
    params |= {
        "dropout": call.number(arguments["dropout"]),
        "causal": causal,
        "flash_impl": "flash" in call.name,
        "dtype_A_B": (call.dtype(query), call.dtype(query + 1)),
    }
    kind = "SDPA_bwd" if backward else "SDPA_fwd"
    return Work(kind, params, flops, elements * item, "matrix", call.dtype(query))


def _visible_pairs(n_q: int, n_kv: int, *, causal: bool) -> float:
    """Count pairs of query and key; a causal mask hides half of the upper left square, as in TraceLens."""
    if not causal:
        return n_q * n_kv
    square = min(n_q, n_kv)
    return square * square / 2 + max(n_q - n_kv, 0) * n_kv
