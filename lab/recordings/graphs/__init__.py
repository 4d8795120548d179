"""CUDA and HIP graphs: which captured launch each replayed kernel is: its op, module, layer and shapes.

A replay is one API call that makes hundreds of GPU rows; the framework's operators ran once, at the capture.
During a capture the launches are recorded without GPU rows, so the two are matched: by node ids, by the order
of names, or by name (docs/graphs.md). Where a replay lost kernels, its rows are embedded into the capture as
early and as late as possible; a row has a certain position only where both agree. A capture that does not fit
attributes nothing.

CUDA records no kernel names at capture: they are taken from an eager run of the same operators, or else only
number and kind of the launches are compared (confidence `count`).
"""

from lab.recordings.graphs.join import Join, executed_batches, join
from lab.recordings.graphs.origins import lacks_of
from lab.recordings.graphs.rows import CONFIDENCES, LAYER_RULES, RULES
from lab.recordings.graphs.sources import Source, load_sources

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
]
