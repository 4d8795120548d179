"""From the bytes of a log to a `Log`: blocks of lines, counted in Python or C, against the log's report."""
