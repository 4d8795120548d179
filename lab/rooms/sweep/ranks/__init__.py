"""Which rank makes the others wait, why, and what a repair gives: `lab ranks`.

The account itself is `lab.recordings.ranks`; this reads folders of ranks and shows what it found.
"""
