"""The GEMM pipeline: how a GEMM's time varies under collective settings, and why.

`tables` reads every trace once, in parallel; `workbooks` writes the Excel reports of each rank and configuration;
`variance` finds the GEMMs whose time varies most and remembers the extreme instances; `overlap` says what ran
beside them; `cause` compares the same shape with and without a collective beside it.
"""

from __future__ import annotations

import os

# No table here needs BLAS: its threads cost each reading process 50 ms of CPU before the first line of work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
