"""The room's pages: tables -> CSV files, figures, one page, and a verdict in sentences."""
