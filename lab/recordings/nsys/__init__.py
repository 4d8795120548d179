"""Reader of Nsight Systems' exports (`nsys export --type sqlite` or `parquetdir`), of every schema so far.

Tables without rows are absent from an export and columns come and go between versions, so the reader asks for
both before it uses them. Both exports hold the same tables, so one reader serves them (`Export`). A file is
opened read-only; strings that no event uses (the environment of the process, among others) are not read.
Times are ns on one clock for host and device. Ids pack the process: pid = globalTid >> 24 & 0xFFFFFF, and the
lowest 24 bits are the thread.
"""

from lab.recordings.nsys.export import check, is_folder
from lab.recordings.nsys.reader import REPORT_SUFFIXES, load, load_report

__all__ = ["REPORT_SUFFIXES", "check", "is_folder", "load", "load_report"]
