"""Replay: where do two runs of the same step first differ, bit by bit? No torch here."""
