"""Which GEMMs vary most, what ran beside them, and what slows them."""
