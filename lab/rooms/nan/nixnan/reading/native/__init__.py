"""nixnan's lines in C."""
