"""CUDA and HIP graphs: which captured launch each replayed kernel is: its op, module, layer and shapes.

A replay is one API call that makes hundreds of GPU rows; the framework's operators ran once, at the capture.
During a capture the launches are recorded without GPU rows, so the two are matched (`op_rule`, best first):

| rule | what it rests on |
|---|---|
| external_id, correlation | not of a graph: the recorder's own link, or the call and the operator around it |
| node | graph node ids, which count the nodes of a graph in the order of their capture |
| order | the sequence of kernel names equals that of the capture, or fits it at one place only |
| name | every captured launch of that name has the same op (the position, so the layer, is not known) |
| none | nothing fits; the row stays unattributed and is counted |

Where a replay lost kernels, its rows are embedded into the capture as early and as late as possible; a row
has a certain position only where both agree. A capture that does not fit attributes nothing.

Limits: within one stream, nodes are assumed to run in the order of their capture. CUDA records no kernel
names at capture: they are taken from an eager run of the same operators, or else only number and kind of the
launches are compared (confidence `count`).
"""

from lab.recordings.graphs.join import Join, executed_batches, join
from lab.recordings.graphs.origins import lacks_of
from lab.recordings.graphs.rows import CONFIDENCES, LAYER_RULES, RULES
from lab.recordings.graphs.sources import Source, load_sources, own_source

__all__ = [
    "CONFIDENCES",
    "LAYER_RULES",
    "RULES",
    "Join",
    "Source",
    "executed_batches",
    "join",
    "lacks_of",
    "load_sources",
    "own_source",
]
