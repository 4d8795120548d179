"""Semicrf: a semi-Markov CRF that is exact, fast, and explains its NaNs.

Question: why does a streaming semi-CRF give NaN or drifting parameters? Is it the kernel, the objective, the
boundaries or the data? And is training with it worth it, compared with a linear CRF?

Method: partition and gold path share one definition of the score, with real -inf and local prefix sums.
`train` measures heads and backends on a phoneme corpus. `diagnose` runs a matrix of backends, lengths,
regularisation and batch orders, and probes that each point at one cause. `check` compares this device's
kernels with float64.

Source: the NaN guide of torch-semimarkov (biobenkj/torch-semimarkov, MIT, commit 62b87b3), whose flags and
messages are kept; formulas of semi-Markov CRFs after Sarawagi and Cohen (2004).

What it cannot tell: a race that does not show in any run of the matrix; whether a model suits the data (the
linter shows only that the objective is a probability). The synthetic corpus is made by known parameters and
says nothing about speech.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.core.plan import Findings, Silent

if TYPE_CHECKING:
    from lab.core.run import Run

# Names for users of the package, and the module (which imports torch) that defines each.
_MODULES = {
    "SegmentDistribution": "model.distribution",
    "SemiCRF": "model.head",
    "log_partition": "model.api",
    "marginals": "model.api",
    "viterbi": "model.api",
    "sample": "model.api",
    "entropy": "model.api",
    "kbest": "model.api",
    "lint_objective": "workload.probes.linter",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """The model's names, loaded on first use, so that plans need no torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from lab.errors import needs

    with needs("semicrf"):
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def recognises(folder: Path) -> bool:
    """No: a folder that lab did not make holds nothing that this room reads."""
    return False


def watcher(run: Run) -> Silent:
    return Silent()


def analyse(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Results of the steps -> tables, figures and report.html in `out`."""
    from lab.errors import needs

    assert run is not None, "this room reads only runs of its own"
    with needs("analysis"):
        from lab.rooms.semicrf.report import analyse_semicrf
    return analyse_semicrf(out, run, progress)
