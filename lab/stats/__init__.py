"""Spans of time, columns, robust statistics, means, effects, rates of failure, the gate of `lab check`."""
