"""Semicrf: a semi-Markov CRF that is exact, fast, and explains its NaNs.

Question: why does a streaming semi-CRF give NaN or drifting parameters, is it the kernel, the objective, the boundaries
or the data; and does training with it pay against a linear CRF?

Method: one definition of the score shared by partition and gold path, real -inf, local prefix sums; `train` measures
heads and backends on a phoneme corpus; `diagnose` runs a matrix of backends, lengths, regularisation and batch orders
with probes that each have one cause; `check` holds this device's kernels against float64.

Source: the NaN guide of torch-semimarkov (biobenkj/torch-semimarkov, MIT, commit 62b87b3), whose flags and messages are
kept; formulas of semi-Markov CRFs after Sarawagi and Cohen (2004).

What it cannot tell: a race that no run of the matrix meets; whether a model is the right one for the data (the linter
shows only that it is a probability). The synthetic corpus is made by known parameters and says nothing about speech.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.core.run import Run
    from lab.rooms.semicrf.report import Findings

# What a person imports from here, and the module (with torch in it) that holds it.
_HOMES = {
    "SemiCRF": "head",
    "log_partition": "api",
    "marginals": "api",
    "viterbi": "api",
    "sample": "api",
    "entropy": "api",
    "lint_objective": "linter",
}
__all__ = ["SemiCRF", "entropy", "lint_objective", "log_partition", "marginals", "sample", "viterbi"]


def __getattr__(name: str) -> Any:
    """The model's names, loaded when they are first asked for, so that plans need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from lab.errors import needs

    with needs("workload"):
        return getattr(importlib.import_module(f"{__name__}.model.{_HOMES[name]}"), name)


class Quiet:
    """A watcher that keeps no log of its own: the steps' logs hold all there is."""

    def begin(self, step: Any) -> None:
        """Nothing to note."""

    def line(self, step: Any, line: str) -> None:
        """The step's own log holds its lines."""

    def end(self, step: Any, outcome: Any) -> None:
        """The manifest holds the outcome."""


def recognises(folder: Path) -> bool:
    """Whether `folder` holds a comparison in the JSON form of the TIMIT benchmark, whoever made it."""
    from lab.rooms.semicrf.layout import comparisons

    return bool(comparisons(folder))


def watcher(run: Run) -> Quiet:
    return Quiet()


def analyse(folder: Path, out: Path, run: Run | None, progress: Callable[[str], None]) -> Findings:
    """Results of the steps -> tables, figures and report.html in `out`."""
    from lab.errors import needs

    with needs("analysis"):
        from lab.rooms.semicrf.findings import analyse_semicrf
    return analyse_semicrf(folder, out, run, progress)
