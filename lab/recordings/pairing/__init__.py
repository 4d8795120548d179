"""Collectives of many ranks, matched: which rank was late, how long others waited, how fast the links were.

By process group and sequence number where the recording has them; otherwise by order, if every rank
recorded the same calls, whatever the clocks say; otherwise by the best common order of calls that can have
met on a common clock (Needleman and Wunsch, 1970, with agreement of the ends as the score), so that a lost
collective costs one row and shifts no other. The clocks are a result of the pairing.
"""

from lab.recordings.pairing.clocks import Clock
from lab.recordings.pairing.pairs import Pairs, pair_collectives

__all__ = ["Clock", "Pairs", "pair_collectives"]
