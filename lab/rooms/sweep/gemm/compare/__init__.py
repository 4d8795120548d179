"""Several sweeps side by side on one page: what changed, whether it can be chance, what else differs."""
