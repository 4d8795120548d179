"""SQL over the tables of all runs: DuckDB in a child process that can read no file and write none."""
