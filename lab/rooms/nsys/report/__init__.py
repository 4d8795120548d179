"""The room's tables -> CSV files, figures, ANALYSIS_SUMMARY.txt and one page."""
