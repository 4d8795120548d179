"""All ranks of one run on one timeline for Perfetto, in the "Trace Event Format" of torch.profiler.

Written is what lab reads of any profiler's recording, with the names of arguments that Kineto uses
(`libkineto/src/output_json.cpp`), so that what reads its traces reads the merged one, too.

Per rank r: GPUs have pids from 1000r on, the CPU side from 1000r + 500; thread numbers stay. Flows get new
ids and are written only if both ends are there; correlation and External id are shifted alike, so that no
arrow and no id crosses ranks. Times are moved onto one clock.
"""

from lab.recordings.merge.ranks import Ranks, read_ranks
from lab.recordings.merge.write import merge_captures

__all__ = ["Ranks", "merge_captures", "read_ranks"]
