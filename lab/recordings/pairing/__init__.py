"""Collectives of many ranks, matched: which rank was late, how long others waited, how fast the links were.

By process group and sequence number where the recording has them; otherwise by order, if every rank
recorded the same calls; otherwise by the best common order of calls that can have met in time (Needleman
and Wunsch, 1970, with overlap as the score), so that a lost collective costs one row and shifts no other.
"""

from lab.recordings.pairing.pairs import Pairs, pair_collectives

__all__ = ["Pairs", "pair_collectives"]
