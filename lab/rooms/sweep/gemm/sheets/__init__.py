"""The sheets of one rank's workbook."""
