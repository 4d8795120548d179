"""FLOPs, bytes and roofs of attention, norms, elementwise ops, reductions, convolutions and grouped GEMMs.

Sheets and columns are those of TraceLens (AMD-AGI/TraceLens, `generate_perf_report`); ours follow after them.
"""
