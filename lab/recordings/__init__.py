"""Readers of profiler recordings, and what can be computed from them without a GPU.

`kineto` fills the tables of `tables`, which `views`, `pairing` and `merge` read; `nsys` and
`kineto.capture` fill the tables of `capture`, in which `projection` attributes operations to ranges.
"""
