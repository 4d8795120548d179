"""Engines run steps: here (`local`) or in containers (`docker`), behind one small protocol (`base`)."""
