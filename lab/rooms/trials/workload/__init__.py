"""One trial: the command runs, its output is judged as it comes, and its row is written at its end."""
