"""What a recording lacks, found by comparing its own tables: no format is asked for its opinion here.

| rule | question |
|---|---|
| G | does every launch and copy have a row on the GPU? |
| H | does every row on the GPU have the call that launched it? |
| R | do replays of one graph have equal rows, and those of its capture? |
| S | does a process or rank have launches and no GPU rows, or stop before the others? |
| K | do GPU rows begin after their calls, as far as clocks and queues allow? |
| T | was a whole domain (copies) never recorded? |

What a format can prove about itself, its reader puts into `Capture.lacks`: C (Kineto's event indices), N
(nsys' own counts), D (AMD's dispatch ids).
"""

from lab.recordings.integrity.rules import integrity_of

__all__ = ["integrity_of"]
