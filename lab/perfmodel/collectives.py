"""What one rank adds up and must send in a collective, whatever the algorithm."""

from __future__ import annotations

from lab.perfmodel.calls import Work
from lab.perfmodel.dtypes import item_bytes

# Kind of call -> parts of the message that a rank of n sends, and adds up, in units of (n - 1) / n;
# nccl-tests (doc/PERFORMANCE.md) has the same factors for its bus bandwidth.
_PARTS = {
    "all_reduce": (2, 1),
    "reduce_scatter": (1, 1),
    "all_gather": (1, 0),
    "all_to_all": (1, 0),
}
_WHOLE_MESSAGE = ("broadcast", "reduce", "p2p", "gather", "scatter")


def collective_work(kind: str, in_nelems: int, out_nelems: int, dtype: str, ranks: int) -> Work | None:
    """Return the mean work of one rank; None where kind, size, type or number of ranks is not known.

    kind: as `communication.kind_in` names it; the message is the larger of both buffers.
    """
    nelems, item = max(in_nelems, out_nelems), item_bytes(dtype)
    if nelems < 0 or not item or (kind in _PARTS and ranks < 1):
        return None
    if kind in _WHOLE_MESSAGE:
        sent, added = float(nelems), 0.0
    elif kind in _PARTS:
        sent, added = (parts * nelems * (ranks - 1) / ranks for parts in _PARTS[kind])
    else:
        return None
    params = {"nelems": nelems, "ranks": ranks}
    return Work("Collective", params, added, sent * item, "link", dtype)
