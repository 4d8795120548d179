"""What a program under `lab run replay` records: the bits of its first steps, and of their repeats."""
