"""Ranges of the program projected onto the GPU's operations: which range launched which kernel.

Method: an operation belongs to the API call with its (process, correlation id), and the call to the ranges
around it on its own thread (`same`). PyTorch launches the backward pass from a thread of its own, which no
range of the program reaches: where no phase (`forward`, `backward`, ...) or step lies around a call on its
own thread, the call inherits the phase that exactly one other thread of the process had open at that time
(`cross`), because that thread waits for it. If several threads were in a phase, the operation is counted as
`ambiguous` and inherits none. `attribution="nsys"` is the rule of Nsight Systems' own reports: the same
thread alone.

Limits: an operation whose API call was not recorded stays `unattributed`. An operation counts where it was
launched, however late it ran; which range *needed* its result is not known.
"""

from lab.recordings.phase_names import PHASES, STEPS, WARMUPS, PhaseNames
from lab.recordings.projection.project import project
from lab.recordings.projection.result import AMBIGUOUS, RULES, Offer, Projection, offers
from lab.recordings.projection.select import Wanted, first_ns, select

__all__ = [
    "AMBIGUOUS",
    "PHASES",
    "RULES",
    "STEPS",
    "WARMUPS",
    "Offer",
    "PhaseNames",
    "Projection",
    "Wanted",
    "first_ns",
    "offers",
    "project",
    "select",
]
