"""The first signal ends steps gracefully, the second at once; a step is stopped only past its limits."""

from __future__ import annotations

import signal

import pytest

from lab.core.stop import on_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_and_the_second_one_insists(number):
    said: list[str] = []
    with on_signals(said.append) as stop:
        assert not stop.is_set() and not stop.at_once
        signal.raise_signal(number)
        assert stop.is_set() and not stop.at_once
        assert len(said) == 1 and said[0].startswith(f"{number.name}:")
        signal.raise_signal(number)
        assert stop.is_set() and stop.at_once
        assert said[1:] == ["stopping at once"]


def test_two_different_signals_count_as_two():
    with on_signals(lambda text: None) as stop:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
        assert stop.at_once


@pytest.mark.parametrize("fails", [False, True])
def test_the_earlier_handlers_are_back_afterwards(fails):
    before = [signal.getsignal(number) for number in SIGNALS]
    try:
        with on_signals(lambda text: None):
            assert all(signal.getsignal(n) is not old for n, old in zip(SIGNALS, before, strict=True))
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert [signal.getsignal(number) for number in SIGNALS] == before
