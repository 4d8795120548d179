"""Microseconds as Kineto writes them -> exact integer nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import numpy as np

# Below this many microseconds no two numbers with three decimals share a float64: 2^43 us is 101 days, and
# Kineto moves its base every quarter of a year. Above it the digits are read as integers instead.
FLOAT_EXACT_US = float(2**43)


def float_us_to_ns(times_us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds with up to three decimals (n,) as exact int64 ns (n,), and which were finite (n,).

    Exact below FLOAT_EXACT_US: the whole part is set aside before scaling, so no digit is rounded away.
    """
    exact = np.isfinite(times_us) & (np.abs(times_us) < FLOAT_EXACT_US)
    times_us = np.where(exact, times_us, 0.0)
    floor_us = np.floor(times_us)
    return floor_us.astype(np.int64) * 1000 + np.rint((times_us - floor_us) * 1000).astype(np.int64), exact


def digits_us_to_ns(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """JSON numbers of microseconds (n,) as exact int64 ns (n,), and which could be read (n,).

    All at once if each has three decimals, or none; otherwise one by one.
    """
    fixed = _fixed_point(texts)
    if fixed is not None:
        return fixed, np.ones(len(texts), dtype=bool)
    exact = [_decimal_ns(text) for text in texts]
    readable = np.array([ns is not None for ns in exact], dtype=bool)
    return np.array([ns or 0 for ns in exact], dtype=np.int64), readable


def _fixed_point(texts: Sequence[bytes]) -> np.ndarray | None:
    joined = b",".join(texts)
    marks = np.frombuffer(joined + b",", dtype=np.uint8)
    points, ends = np.flatnonzero(marks == ord(".")), np.flatnonzero(marks == ord(","))
    lengths = np.diff(ends, prepend=-1) - 1
    if len(ends) != len(texts) or lengths.min() < 1 or lengths.max() > 18 + (len(points) > 0):
        return None
    if len(points) and (len(points) != len(ends) or (ends - points != 4).any()):
        return None
    digits = joined.replace(b".", b"")
    if not digits.replace(b",", b"").isdigit():
        return None
    numbers = np.array(digits.split(b","), dtype="S18").astype(np.int64)
    scale = 1 if len(points) else 1000
    return numbers * scale if (numbers < 2**62 // scale).all() else None


def _decimal_ns(text: bytes) -> int | None:
    try:
        time_us = Decimal(text.decode())
    except (InvalidOperation, UnicodeDecodeError):
        return None
    if not time_us.is_finite() or abs(time_us) > 2**52:
        return None
    return int((time_us * 1000).to_integral_value())
