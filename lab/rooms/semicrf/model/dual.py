"""Numbers with a tangent: complex128, value + i h v with an h so small that h^2 vanishes beside the value.

The imaginary part of any product, sum or exponential is then h times the derivative in the direction v, exact
to rounding, because nothing is subtracted (the complex step). Every recursion in torch takes such numbers.
Real numbers are float64 and pass through as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEP = 2.0**-60
"""The largest imaginary part that a score is given."""


def wide(value: Tensor) -> Tensor:
    """In the type that is computed in."""
    return value if value.is_complex() else value.double()


def real(value: Tensor) -> Tensor:
    return value.real if value.is_complex() else value


def plus(a: Tensor, b: Tensor) -> Tensor:
    """a + b. Torch's own sum of complex numbers has NaN for a tangent where b is -inf."""
    if not (a.is_complex() or b.is_complex()):
        return a + b
    value = real(a) + real(b)
    tangents = [x.imag.expand_as(value) for x in (a, b) if x.is_complex()]
    return torch.complex(value, tangents[0] if len(tangents) == 1 else tangents[0] + tangents[1])


def exp(value: Tensor) -> Tensor:
    """0, not NaN, where the value is -inf."""
    if not value.is_complex():
        return value.exp()
    size = value.real.exp()
    return torch.complex(size, size * value.imag)


def log(value: Tensor) -> Tensor:
    """-inf with tangent 0 where the value is 0."""
    if not value.is_complex():
        return value.log()
    some = torch.where(value.real == 0, torch.ones_like(value.real), value.real)
    return torch.complex(value.real.log(), value.imag / some)


def reciprocal(value: Tensor) -> Tensor:
    if not value.is_complex():
        return 1 / value
    return torch.complex(1 / value.real, -(value.imag / value.real) / value.real)
