"""A run's folder -> tables of trainings, of a diagnosis, or of checks.

A failed step is a row with its reason.
"""
