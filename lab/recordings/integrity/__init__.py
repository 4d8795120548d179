"""What a recording lacks, found by comparing its own tables: no format is asked for its opinion here.

Rules G, H, S and T stand in `rules`, R in `replays`, what a GPU cannot have done (B, K, P, U, W, Z) in
`physics`; docs/integrity.md says what each one finds. What a format can prove about itself, its reader puts
into `Capture.lacks`: C (Kineto's event indices), N (nsys' own counts), D (AMD's dispatch ids).
"""

from lab.recordings.integrity.rules import integrity_of

__all__ = ["integrity_of"]
