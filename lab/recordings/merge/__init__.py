"""All ranks of one run on one timeline for Perfetto, in the "Trace Event Format" of torch.profiler.

`merge_json` copies the events of torch.profiler's files (`libkineto/src/output_json.cpp`) one by one, never a
whole trace in memory; `merge_captures` writes what lab reads of any profiler's recording.

Per rank r: GPUs have pids from 1000r on, the CPU side from 1000r + 500; thread numbers stay. Flows get new
ids and are written only if both ends are there; correlation and External id are shifted alike, so that no
arrow and no id crosses ranks. Times are moved onto the earliest rank's base.
"""

from lab.recordings.merge.captures import merge_captures
from lab.recordings.merge.merge import merge_json
from lab.recordings.merge.output import Merged

__all__ = ["Merged", "merge_captures", "merge_json"]
