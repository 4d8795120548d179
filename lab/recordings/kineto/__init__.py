"""Kineto traces (torch.profiler's JSON, plain or gzip) as columns, in one pass and with bounded memory.

`lab.recordings.pieces` yields text, `Columns.feed` turns one text into numpy columns: through the scanner of
`native`, or in the plain form of `decode` and `values` where there is none or the text is unusual. The format
is that of pytorch/kineto, `libkineto/src/output_json.cpp`.
"""

from lab.recordings.kineto.reader import read_kineto

__all__ = ["read_kineto"]
