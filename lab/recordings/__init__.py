"""Readers of profiler recordings: `kineto` makes the tables of `tables`, which `views` asks; `capture` holds what nsys and
Kineto both tell, and `projection` gives its kernels to ranges.
"""
