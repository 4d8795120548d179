"""The change of summed kernel time, split so that every nanosecond is in one class.

For an op of equal shapes and the same kernel, n calls per unit of mean duration d:
`count` = (nB - nA) (dA + dB) / 2, `same_kernel_duration` = (dB - dA) (nA + nB) / 2, which leave nothing over.
A kernel on one side only under an op that both have is `other_kernel`; ops on one side only are `op_gone` or
`op_new`.
"""

from __future__ import annotations

import msgspec

from lab.compare.side import Key
from lab.compare.units import Sums

PARTS = ("count", "other_kernel", "op_gone", "op_new", "same_kernel_duration")


class Row(msgspec.Struct, kw_only=True):
    """One part of the change, per unit: `ns` of it, and the calls on both sides.

    interval is that of `ns` over processes, None where each side is one process. block is the replaced block
    that it belongs to.
    """

    op: str
    dims: str
    types: str
    kernel_a: str | None
    kernel_b: str | None
    n_a: float
    n_b: float
    kind: str
    ns: float
    ns_a: float
    ns_b: float
    interval: tuple[float, float] | None = None
    confidence: str = ""
    block: int | None = None

    @property
    def slower(self) -> float:
        """How much longer one call of a kernel takes that both sides have, as a share of A's."""
        return 2 * self.ns * self.n_a / (self.n_a + self.n_b) / max(self.ns_a, 1.0)


def split(a: Sums, b: Sums) -> list[Row]:
    """The rows of the change, largest first; their `ns` add up to the change of the sums."""
    ops_a, ops_b = ({key[:3] for key in side} for side in (a, b))
    rows: list[Row] = []
    lone_a: dict[tuple[str, ...], list[Key]] = {}
    lone_b: dict[tuple[str, ...], list[Key]] = {}
    for key in sorted(a.keys() | b.keys()):
        if key in a and key in b:
            rows += _shared(key, a[key], b[key])
        elif key in a:
            lone_a.setdefault(key[:3], []).append(key)
        else:
            lone_b.setdefault(key[:3], []).append(key)
    for op in sorted(lone_a.keys() | lone_b.keys()):
        in_both = op in ops_a and op in ops_b
        rows += _lone(lone_a.get(op, []), lone_b.get(op, []), a, b, in_both)
    return sorted(rows, key=lambda row: (-abs(row.ns), row.op, row.dims, row.kernel_a or row.kernel_b or ""))


def parts_of(rows: list[Row]) -> dict[str, float]:
    return {part: float(sum(row.ns for row in rows if row.kind == part)) for part in PARTS}


def _shared(key: Key, a: tuple[float, float], b: tuple[float, float]) -> list[Row]:
    (n_a, ns_a), (n_b, ns_b) = a, b
    d_a, d_b = ns_a / n_a, ns_b / n_b
    parts = [("same_kernel_duration", (d_b - d_a) * (n_a + n_b) / 2)]
    if n_a != n_b:
        parts.append(("count", (n_b - n_a) * (d_a + d_b) / 2))
    return [_row(key, key[3], key[3], a, b, kind, ns) for kind, ns in parts]


def _lone(of_a: list[Key], of_b: list[Key], a: Sums, b: Sums, in_both: bool) -> list[Row]:
    """Kernels on one side only; one on each side under one op are one exchange."""
    none = (0.0, 0.0)
    if in_both and len(of_a) == len(of_b) == 1:
        old, new = of_a[0], of_b[0]
        return [_row(old, old[3], new[3], a[old], b[new], "other_kernel", b[new][1] - a[old][1])]
    gone = [
        _row(key, key[3], None, a[key], none, "other_kernel" if in_both else "op_gone", -a[key][1])
        for key in of_a
    ]
    new_rows = [
        _row(key, None, key[3], none, b[key], "other_kernel" if in_both else "op_new", b[key][1])
        for key in of_b
    ]
    return gone + new_rows


def _row(
    key: Key,
    kernel_a: str | None,
    kernel_b: str | None,
    a: tuple[float, float],
    b: tuple[float, float],
    kind: str,
    ns: float,
) -> Row:
    return Row(
        op=key[0],
        dims=key[1],
        types=key[2],
        kernel_a=kernel_a,
        kernel_b=kernel_b,
        n_a=a[0],
        n_b=b[0],
        kind=kind,
        ns=ns,
        ns_a=a[1],
        ns_b=b[1],
    )
