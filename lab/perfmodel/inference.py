"""FLOPs and least bytes of fused inference ops, mixtures of experts, grouped products and selective scans.

Arguments are those that vLLM, SGLang, aiter and mamba_ssm register.
"""

from __future__ import annotations

from lab.perfmodel.calls import OpCall, Work, count, op_of


def loop_work(call: OpCall) -> Work | None:
    """Return the work of a fused loop over one input; None where its shape or type was not recorded."""
    op = op_of(call.name)
    x_index, flops, halves = (op.arguments[name] for name in ("x", "each", "halves"))
    x = call.tensor(x_index)
    weight = call.tensor(op.arguments["weight"]) if "weight" in op.arguments else None
    if x is None or not call.element_bytes(x_index):
        return None
    num_bytes = (halves * count(x) // 2 + count(weight or (0,))) * call.element_bytes(x_index)
    kind = "Normalization" if op.kind == "norm" else "UnaryElementwise"
    return Work(kind, {"op_shape": x}, flops * count(x), num_bytes, "vector", call.dtype(x_index))


def rotary_work(call: OpCall) -> Work | None:
    """Each pair of rotated elements takes four products and two sums."""
    query, key, head_size, cache = call.tensor(1), call.tensor(2), call.numbers(3), call.tensor(4)
    if query is None or not head_size or cache is None or not call.element_bytes(1):
        return None
    elements = count(query) + count(key or (0,))
    flops = 3 * elements * min(1.0, cache[-1] / head_size[0])
    num_bytes = 2 * elements * call.element_bytes(1)
    return Work("RoPE", {}, flops, num_bytes, "vector", call.dtype(1))


def cache_write_work(call: OpCall) -> Work | None:
    key, value = call.tensor(0), call.tensor(1)
    if key is None or value is None or not call.element_bytes(0):
        return None
    num_bytes = 2 * (count(key) + count(value)) * call.element_bytes(0)
    return Work("Move", {}, 0, num_bytes, "vector", call.dtype(0))


# Per state and token: exp(delta A) 2, delta B u 2, the recurrence 2 and the sum over states 2, 1 more.
_SCAN_FLOPS = 9


def grouped_work(call: OpCall) -> Work | None:
    """Return the work of a product per group: [rows, K] or [G, M, K] by [G, K, N], or rows by rows."""
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None or len(a) < 2 or len(b) < 2 or not call.element_bytes(0):
        return None
    offsets = call.tensor(op_of(call.name).arguments["offsets"])
    groups = a[0] if len(a) == 3 else b[0] if len(b) == 3 else count(offsets or (0,))
    m, k, n = count(a[:-1]), a[-1], b[-1]
    # Rows by rows: every group sums over its part of K, and each has an [M, N] of its own.
    out = groups * m * n if len(a) == len(b) == 2 else m * n
    num_bytes = (count(a) + count(b) + out) * call.element_bytes(0)
    params = {"G": groups, "M": m, "N": n, "K": k}
    return Work("GroupedGEMM", params, 2 * m * n * k, num_bytes, "matrix", call.dtype(0))


def experts_work(call: OpCall) -> Work | None:
    """Return the work of all experts' two products: each token goes through k of them.

    Bytes: the weights of as many experts as there can be pairs of token and expert, the tokens in and out.
    """
    hidden, w1, w2, ids = (call.tensor(index) for index in (0, 1, 2, 4))
    if hidden is None or w1 is None or w2 is None or ids is None or len(w1) != 3 or len(w2) != 3:
        return None
    pairs = count(ids)
    flops = 2 * pairs * (count(w1[1:]) + count(w2[1:]))
    used = min(w1[0], pairs) / w1[0] if w1[0] else 0.0
    num_bytes = used * (count(w1) + count(w2)) * call.element_bytes(1)
    num_bytes += 2 * count(hidden) * call.element_bytes(0)
    params = {"T": hidden[0], "H": hidden[-1], "E": w1[0], "I": w2[-1], "top_k": ids[-1]}
    return Work("MoE", params, flops, num_bytes, "matrix", call.dtype(1)) if call.element_bytes(1) else None


def selective_scan_work(call: OpCall) -> Work | None:
    """Return the work of Mamba's scan over L tokens with N states per channel, as state-spaces/mamba does."""
    u, a = call.tensor(0), call.tensor(2)
    if u is None or a is None or len(a) != 2 or not call.element_bytes(0):
        return None
    flops = count(u) * (_SCAN_FLOPS * a[1] + sum(call.tensor(index) is not None for index in (5, 6)))
    elements = 3 * count(u) + sum(count(call.tensor(index) or (0,)) for index in (3, 4, 6))
    params = {"shape": u, "states": a[1]}
    return Work("Scan", params, flops, elements * call.element_bytes(0), "vector", call.dtype(0))
