"""One look for every page of lab: page, figures, tables and the colours they share."""
