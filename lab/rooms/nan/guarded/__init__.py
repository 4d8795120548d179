"""Records of guarded training jobs, one per rank, joined into one verdict and one page. No torch."""
