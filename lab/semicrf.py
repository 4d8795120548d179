"""An exact semi-Markov CRF for a model of your own; it needs torch and numpy (the extra `lab[semicrf]`).

    from lab import semicrf
    head = semicrf.SemiCRF(num_classes=5, max_duration=8, hidden_dim=16)
    loss = head(hidden, lengths, labels)             # hidden (B, T, 16), labels (B, T); or mask=, or -100
    segments = head.decode(hidden, lengths)

`log_partition`, `marginals`, `viterbi`, `kbest`, `sample` and `entropy` take the model's scores themselves;
`SegmentDistribution` is the distribution over segmentations; `lint_objective` asks whether a loss is a
probability. See docs/semicrf.md.
"""

from __future__ import annotations

from typing import Any

from lab.rooms import semicrf as room

__all__ = room.__all__


def __getattr__(name: str) -> Any:
    """The room's names, which load torch on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(room, name)
