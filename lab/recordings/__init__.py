"""Readers of profiler recordings, and what can be computed from them without a GPU.

`load` reads any file into the tables of `capture`; `owners` says who launched what, `integrity` what is
missing; `views` and `projection` answer questions; `ranks`, `pairing` and `merge` take several together.
"""
