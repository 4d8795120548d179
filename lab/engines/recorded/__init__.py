"""Plays back a run that was made before: for tests of the driver, and for demos without a GPU."""
