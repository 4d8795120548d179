"""What a `Log` says: its verdict, causes, coverage and summary, and how two logs differ."""
