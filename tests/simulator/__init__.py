"""A simulator that knows the truth: programs of a few actions, played, written as recordings, damaged, asked.

Read in this order: `program` (actions, played on hosts and GPUs), `truth` (what is right, by plain sums),
`writers` and `kineto` (the recorders' formats), `faults`, `draws` (hypothesis), `figures` (what lab's
commands answer), `judge` (equal, said to be in doubt, or silently different).
"""
