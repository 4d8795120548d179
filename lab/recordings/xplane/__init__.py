"""Reader of XPlane files (`.xplane.pb`), what the profilers of JAX, XLA and TensorFlow write.

One protobuf message: planes (a GPU, the host), in them lines (a stream, a thread), in them events, whose
names and stats are interned per plane (openxla/xla, third_party/tsl/tsl/profiler/protobuf/xplane.proto). A
GPU row names the HLO operation that it belongs to; the calls of the driver stand on the host's lines. What
the recorder dropped it says in warnings alone (xla/backends/profiler/gpu/cupti_collector.cc).
"""

from lab.recordings.xplane.capture import load

__all__ = ["load"]
