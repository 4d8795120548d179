"""What changed between two recordings, split exactly, and how far one pair can prove it.

`lab diff A B` compares the GPU work of one unit (a step) by op, shapes and kernel: every nanosecond of the
change is in one class, and the classes add up. `lab check BASE HEAD` judges repeats, for which processes are
the samples: steps of one process are not independent. Both test the whole by `lab.compare.whole`.
"""

from __future__ import annotations
