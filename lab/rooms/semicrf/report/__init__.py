"""The pages, one module each: tables -> CSV files, figures, one page, and a verdict in sentences."""
