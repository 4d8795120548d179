"""The GEMM pipeline: how a GEMM's time varies under collective settings, and why.

`data` reads every trace once, in parallel, and `rank` writes the workbook of each rank (`sheets`). `reports`
writes those over ranks and settings. `variance` finds the GEMMs whose time varies most and keeps their
extremes (`top`), says what ran beside these (`overlap`) and compares the same shape with and without a
collective beside it (`cause`). `merge` puts all ranks on one timeline. `steps` does all of it;
`comparison` puts several sweeps side by side.
"""
