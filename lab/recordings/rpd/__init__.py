"""Reader of .rpd files: rocmProfileData's SQLite, schemas 2 and 3.

An operation and its call are linked by `rocpd_api_ops`; sizes, geometry and the stream stand beside the call
(`rocpd_kernelapi`, `rocpd_copyapi`), and only the call has a process. Schema 3 adds domains (among them the
operators of torch) and keeps arguments in `rocpd_ustring`. gpuId is the node's number, which counts CPUs too.
"""

from lab.recordings.rpd.reader import load

__all__ = ["load"]
