"""The GEMM pipeline: how a GEMM's time varies under collective settings, and why.

`data` reads every trace once, in parallel, and `rank` writes the workbook of each rank (`sheets`). `steps`
does all of it, and writes the reports over ranks and settings. `variance` finds the GEMMs whose time varies
most and keeps their extremes; `beside` says what ran beside these, and compares the same shape with and
without a collective. `merge` puts all ranks on one timeline; `comparison` puts several sweeps side by side.
"""
