"""The first signal ends steps gracefully, the second at once; a step is stopped only past its limits."""

from __future__ import annotations

import signal

import pytest

from lab.core.step import Step
from lab.core.stop import Stop, on_signals, reason_to_stop

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


STEP = Step(name="s", argv=("x",), timeout_s=10.0, stall_timeout_s=4.0)
FREE = Step(name="s", argv=("x",))
FINE = {"ran_s": 10.0, "silent_s": 4.0, "disk_full": False}  # exactly at both limits


@pytest.mark.parametrize(
    "change, reason",
    [
        ({}, None),
        ({"ran_s": 10.01}, "timeout"),
        ({"silent_s": 4.01}, "stall"),
        ({"disk_full": True}, "disk"),
        ({"ran_s": 10.01, "silent_s": 4.01, "disk_full": True}, "timeout"),
        ({"silent_s": 4.01, "disk_full": True}, "stall"),
    ],
)
def test_a_step_ends_past_its_limit_and_not_at_it(change, reason):
    assert reason_to_stop(STEP, Stop(), **{**FINE, **change}) == reason


def test_a_step_without_limits_may_run_and_be_silent_for_ever():
    assert reason_to_stop(FREE, Stop(), ran_s=1e9, silent_s=1e9, disk_full=False) is None


def test_the_user_comes_before_every_limit():
    stop = Stop()
    stop.set()
    assert reason_to_stop(STEP, stop, ran_s=99.0, silent_s=99.0, disk_full=True) == "user"
