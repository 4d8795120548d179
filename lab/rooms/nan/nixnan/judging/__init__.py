"""What a `Log` says: its verdict, coverage and causes, and how two logs differ."""
