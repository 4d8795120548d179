"""The peers, where they are installed: each lives in an environment of its own, named by a variable."""

from __future__ import annotations

import os
import subprocess

TRACELENS = "LAB_BENCH_TRACELENS"
HTA = "LAB_BENCH_HTA"
WHERE = {
    TRACELENS: (
        "TraceLens.Reporting.generate_perf_report_pytorch",
        "a Python that has AMD-AGI/TraceLens installed from its source (PyPI's tracelens is another thing)",
    ),
    HTA: ("hta.trace_analysis", "a Python that has HolisticTraceAnalysis==0.5.0 and pandas<3"),
}


def peer(variable: str) -> str | None:
    """The interpreter of a peer; None, after saying why, where it cannot be used."""
    module, what = WHERE[variable]
    python = os.environ.get(variable)
    if not python:
        print(f"skipped the peer: {variable} does not name {what}")
        return None
    done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"skipped the peer: {variable}={python} cannot import {module}")
        return None
    return python
