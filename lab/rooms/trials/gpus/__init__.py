"""GPUs against each other: does one of them compute other bits, slower, or with errors? No torch here."""
