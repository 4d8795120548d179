"""SQL over the tables of all runs: DuckDB in a child process that can read no file and write none.

The child registers Arrow tables that pyarrow has read, then closes DuckDB to everything outside. Rows, time
and memory are bounded; what could not be read, or was cut, is said in the answer.
"""
