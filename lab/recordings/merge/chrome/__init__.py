"""Merge into one JSON file in the Trace Event Format."""
