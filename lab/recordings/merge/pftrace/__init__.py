"""Merge into Perfetto's own format: smaller than JSON, and it opens faster.

A file is a list of TracePackets (google/perfetto, `protos/perfetto/trace/trace_packet.proto`,
track_event.proto, track_descriptor.proto, interned_data.proto); the few fields used here are encoded by
hand. Slices that overlap on a row without one holding the other get lanes of their own, because a track
holds nested slices only.
"""
