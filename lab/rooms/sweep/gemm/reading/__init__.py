"""Every trace of a sweep read once: its GEMMs, its collectives, and tables over all of them."""
