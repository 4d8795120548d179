"""Why a step took as long as it did, over all ranks: an exact account, its causes, and what a repair gives.

Each instant of each rank and step has one label (compute, transfer, wait for a rank, copy, launch late,
launch gap, tail, unexplained), so the parts sum to the step. Waiting is followed to what the awaited rank did
meanwhile; stragglers are named by the time they cause; a replay of the launches says what a repair gives.
"""

from lab.recordings.ranks.account import Account, account_of
from lab.recordings.ranks.work import RankWork, work_of

__all__ = ["Account", "RankWork", "account_of", "work_of"]
