"""What a replay proves: the same kernel or not, how far off its time is, and what is missing."""
