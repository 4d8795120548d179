"""Reader of torch.profiler's Perfetto files (.pftrace, .pb.gz), and of those that lab merged from its traces.

A file is a list of packets (google/perfetto, protos/perfetto/trace); names are interned per sequence and
cleared now and then, slices are a begin and an end, in whatever order the writer had them. Their categories
and arguments are those of torch's JSON, so the slices become its events and Kineto's reader reads them.
"""

from lab.recordings.pftrace.events import load
from lab.recordings.pftrace.packets import looks_like_packets

__all__ = ["load", "looks_like_packets"]
