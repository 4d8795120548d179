"""Reader of Perfetto's protobuf files (.pftrace, .pb.gz): torch.profiler's, rocprofv3's and lab's own merges.

A file is a list of packets (google/perfetto, protos/perfetto/trace); names are interned per sequence and
cleared now and then, slices are a begin and an end, in whatever order the writer had them. rocprofv3's are
altered data: take its database where there is one.
"""

from lab.recordings.pftrace.capture import load
from lab.recordings.pftrace.packets import looks_like_packets

__all__ = ["load", "looks_like_packets"]
