"""Whether two recorded forwards and backwards computed the same: by bits, within the noise, or from which op.

`lab same A B` pairs the outputs of modules and ops of two recordings of `lab.same.record`. The noise floor is
measured (recordings with nudged weights, or a float64 reference), never a constant. How far an output is
off says where it is seen; an op's own error, against float64 on the inputs that it got, says who made
it: noise or a fault upstream does not hide a second one.
"""

from __future__ import annotations
