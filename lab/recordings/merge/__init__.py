"""All ranks of one run on one timeline for Perfetto: event by event, never a whole trace in memory.

`merge_json` writes Google's "Trace Event Format" with the fields that pytorch/kineto writes
(`libkineto/src/output_json.cpp`), `merge_pftrace` Perfetto's own format: smaller, and it opens faster.

Per rank r: GPUs have pids from 1000r on, the CPU side from 1000r + 500; thread numbers stay. Flows get new
ids and are written only if both ends are there; correlation and External id are shifted alike, so that no
arrow and no id crosses ranks. Times are moved onto the earliest rank's base.
"""

from lab.recordings.merge.chrome.merge import merge_json
from lab.recordings.merge.output import Merged
from lab.recordings.merge.pftrace.merge import merge_pftrace

__all__ = ["Merged", "merge_json", "merge_pftrace"]
