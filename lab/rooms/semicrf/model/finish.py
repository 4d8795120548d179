"""The last step of every backend: the counts are audited, and what does not add up is computed again.

A fast form can lose mass without a NaN: a product that underflows, a message that is stale. What is lost is
missing from an identity that all counts obey, so each result is held to those identities, whichever form made
it. Sequences that break one are redone in the log domain, float64, which is slower and does not underflow.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from lab.core.words import plural
from lab.rooms.semicrf.model import log_domain
from lab.rooms.semicrf.model.ledger import beyond, imbalance, tolerance_of
from lab.rooms.semicrf.model.problem import Posteriors, Problem, admitted


class MendedCounts(RuntimeWarning):
    """What a fast form computed did not add up. The result is right; the form or the GPU is not."""


def finish(problem: Problem, posteriors: Posteriors) -> bool:
    """Compute the counts of unsound sequences again, in `posteriors`, with a warning; whether there were any.

    Their mass error stays what the fast form computed, so that a watch can stop a training over it: a form
    that is sound marks its underflow itself, and never comes here.
    """
    worst_B = audited(problem, posteriors)
    allowed = tolerance_of(posteriors.label_BTC.dtype, posteriors.label_BTC.shape[1])
    error_B = (
        worst_B.cpu().numpy() if posteriors.fetched is None else posteriors.fetched.numpy()
    )  # the one wait
    sound_B = error_B <= allowed  # NaN is not sound
    if sound_B.all():
        return False
    rows = torch.from_numpy((~sound_B).nonzero()[0]).to(worst_B.device)
    counts = log_domain.posteriors(admitted(problem.rows(rows)))
    wrong_B = beyond(posteriors.log_z_B[rows], counts.log_z_B, posteriors.label_BTC.dtype)
    posteriors.replace_rows(rows, counts)
    posteriors.mass_error_B[rows] = torch.maximum(worst_B[rows], wrong_B)
    worst = int(posteriors.mass_error_B[rows].argmax())
    warnings.warn(
        f"expected counts of {plural(len(rows), 'sequence')} did not add up and were computed again "
        f"in the log domain; worst: sequence {int(rows[worst])}, off by {float(worst_B[rows[worst]]):.3g}"
        + (
            f", and its log Z is off by a factor {1 + float(wrong_B[worst]):.6g}"
            if wrong_B[worst] > 0
            else ""
        ),
        MendedCounts,
        stacklevel=2,
    )
    return True


def audited(problem: Problem, posteriors: Posteriors) -> Tensor:
    """The worst error of what each sequence's counts must add up to, (B,); 0 where nothing is feasible.

    The CUDA form computes it itself.
    """
    if posteriors.imbalance_B is not None:
        return posteriors.imbalance_B
    worst_B = imbalance(problem, posteriors)
    return torch.where(torch.isfinite(posteriors.log_z_B), worst_B, torch.zeros_like(worst_B))
