"""Reader of rocpd databases: rocprofv3's default output from ROCm 7 on, and rocprof-sys'.

A file holds one set of tables per process, with the process' guid in their names (`rocpd_region_<guid>`), and
views that join them. Ids are unique within a guid only. The views are not read: an inner join in them drops
rows without a word, and in a foreign file they are code. A call and its kernels share `stack_id`; the column
`correlation_id` holds the external id, which is usually 0. Times are ns on one clock since boot.
"""

from lab.recordings.rocpd.reader import load
from lab.recordings.rocpd.rows import TABLE

__all__ = ["TABLE", "load"]
