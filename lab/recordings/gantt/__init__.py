"""Launches as bars, for every format: one row each for compute, communication and copies of a stream."""
