"""Interval arithmetic (`intervals`), robust statistics (`robust`) and effects of conditions (`effects`)."""
