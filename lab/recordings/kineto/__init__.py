"""Kineto traces (torch.profiler's JSON, plain or gzip) as columns, in one pass and with bounded memory.

`lab.recordings.pieces` yields text, `Columns.feed` turns one text into numpy columns; a native scanner can
replace `feed` alone. The format is that of pytorch/kineto, `libkineto/src/output_json.cpp`.
"""

from lab.recordings.kineto.reader import READER_VERSION, read_kineto

__all__ = ["READER_VERSION", "read_kineto"]
