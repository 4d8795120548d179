"""The planned looks of a check at growing numbers of processes, and the part of the false alarms each has.

Looking again and again at the full level calls equal sides different. The later a look, the more it has: of
small changes only the last one knows enough, and large ones show at any level.
"""

from __future__ import annotations

LOOKS = (3, 6, 12)  # processes a side
SHARES = {3: 0.1, 6: 0.2, 12: 0.7}


def share_of(processes: int) -> float:
    """The part of the allowed false alarms that the look at so many processes a side has."""
    return SHARES[processes]


def share_within(processes: int, most: int) -> float:
    """The same of a second set, which has `most` processes a side at last and may be looked at before."""
    return SHARES[processes] / sum(share for looked, share in SHARES.items() if looked <= most)
