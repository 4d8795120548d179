"""The Excel and CSV reports over ranks and settings."""
