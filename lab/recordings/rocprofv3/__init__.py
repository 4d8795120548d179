"""Reader of rocprofv3's JSON (`--output-format json`), its rows in pieces.

One object `rocprofiler-sdk-tool`, a list with one element per process. Rows are not in the order of time; a
kind and an operation are indices of the names in `strings.buffer_records`, which differ between versions.
Only what is needed is decoded: command, configuration and host name are passed over.
"""

from lab.recordings.rocprofv3.reader import load

__all__ = ["load"]
