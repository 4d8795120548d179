"""`lab diff A B`: what changed between two recordings, split exactly, and why."""
