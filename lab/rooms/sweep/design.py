"""What a sweep of so many settings and repeats will be able to show, said before it runs.

The unit is one launch of the job. Every repeat is a pass over all settings in random order, so it is a block:
log(time) = setting + block + error, and settings are compared with the best or a default by t with the pooled
error (Dunnett 1955; the limit here is Bonferroni's, which is a little wider).
"""

from __future__ import annotations

import math

from lab.stats.means import student_t

LEVEL = 0.05
# Simulated with 8 settings: 3 blocks find a difference of 3 sd in 72 % of sweeps, 4 blocks in 90 %.
ADVISED_REPEATS = 4


def detectable_sd(num_settings: int, repeats: int) -> float:
    """The smallest difference between a setting and the one it is compared to, in sd of a run.

    Infinite for one repeat or one setting, which leave no error to compare with.
    """
    free = (num_settings - 1) * (repeats - 1)
    if free < 1:
        return math.inf
    return student_t(LEVEL / (num_settings - 1), free) * math.sqrt(2 / repeats)


def design_note(num_settings: int, repeats: int) -> str | None:
    """What this design can show, and which would show more; None for one setting."""
    if num_settings < 2:
        return None
    limit = detectable_sd(num_settings, repeats)
    if math.isinf(limit):
        better = detectable_sd(num_settings, ADVISED_REPEATS)
        return (
            "one run of each setting cannot tell a difference from chance; "
            f"--repeats {ADVISED_REPEATS} shows differences above {better:.1f} sd of a run"
        )
    # With a residual of 1 %, which is usual for GPU-bound steps, so many repeats show 2 %.
    needed = next((n for n in range(2, 100) if detectable_sd(num_settings, n) <= 2), 100)
    advice = f"; {needed} repeats show 2 % where runs scatter by 1 %" if needed > repeats else ""
    return (
        f"{repeats} repeats of {num_settings} settings in blocks show differences above {limit:.1f} sd of a "
        f"run against one setting named beforehand{advice}"
    )
