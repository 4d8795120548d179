"""Microseconds to nanoseconds, digit by digit."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lab.recordings.kineto import read_kineto
from lab.recordings.kineto.values import durations_ns, times_ns


@given(st.integers(0, 2**43 * 1000 - 1))
def test_durations_survive_a_float64_to_the_nanosecond(time_ns):
    text = f"{time_ns // 1000}.{time_ns % 1000:03d}"
    assert durations_ns(np.array([float(text)]))[0].tolist() == [time_ns]


def test_absolute_epoch_microseconds_keep_every_digit(tmp_path):
    text = '{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","ts":1790857026123456.789,"dur":0.001}]}'
    (tmp_path / "t.json").write_text(text)
    trace = read_kineto(tmp_path / "t.json")
    assert trace.operators.start_ns.tolist() == [1790857026123456789]
    assert (trace.operators.dur_ns.tolist(), trace.meta.base_ns) == ([1], 0)


NUMBER = st.one_of(
    st.integers(0, 2**61),
    st.decimals(0, 2**50, places=3),
    st.decimals(-(2**50), 2**50, places=6),
    st.sampled_from(["NaN", "1e3", "", '"1,5"', "null", "9" * 400, "1.0005", "-1"]),
)


@given(
    st.lists(NUMBER, min_size=1, max_size=6)
    | st.lists(st.decimals(0, 2**50, places=3), min_size=1, max_size=6)
)
def test_digits_become_the_nanoseconds_that_decimals_give(numbers):
    texts = [str(number) for number in numbers]
    plain = []
    for text in texts:
        try:
            value = Decimal(text)
        except InvalidOperation:
            value = Decimal("NaN")
        small = value.is_finite() and abs(value) <= 2**52
        plain.append(int((value * 1000).to_integral_value()) if small else None)
    found, known = times_ns([text.encode() for text in texts])
    for ns, is_known, expected, text in zip(found.tolist(), known.tolist(), plain, texts, strict=True):
        if expected is not None:
            assert is_known and ns == expected
        elif is_known:  # whole numbers all at once may be read further than one by one
            assert ns == int(text) * 1000
