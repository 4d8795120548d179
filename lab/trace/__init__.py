"""Readers of profiler recordings: `kineto.read_kineto` makes the tables of `tables`; `views` asks them."""
