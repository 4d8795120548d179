"""Kineto traces (torch.profiler's JSON, plain or gzip) as columns, in one pass and with bounded memory.

`lab.recordings.pieces` yields text, `Columns.feed` turns one text into numpy columns: msgspec decodes its
events into structs of the fields in use, `values` makes columns of them. The format is that of
pytorch/kineto, `libkineto/src/output_json.cpp`.
"""

from lab.recordings.kineto.columns import read_kineto

__all__ = ["read_kineto"]
