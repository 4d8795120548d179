"""Flight-recorder dumps of a stalled job: which rank, which collective, and what kind of hang it is.

torch keeps the last collectives of every process group in a ring (TORCH_FR_BUFFER_SIZE); a dump of it, as
a pickle or as JSON, says what each rank has entered and left. Nothing in a pickle is ever run.
"""

from lab.recordings.flight.dumps import Dump, Entry, read_dumps
from lab.recordings.flight.verdict import Verdict, verdict_of

__all__ = ["Dump", "Entry", "Verdict", "read_dumps", "verdict_of"]
