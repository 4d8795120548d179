"""A control arm's processes are stopped for a share of the time, and how large that is follows the trials."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.rooms.trials.cells import cell, with_controls
from lab.rooms.trials.config import Trial, TrialsConfig
from lab.rooms.trials.control import MOST, pause_for
from lab.rooms.trials.workload.pauses import Pauses, family

CELLS = with_controls([cell("none"), cell("launch_blocking")], "none")
CONFIG = TrialsConfig(command=("x",), cells=CELLS, baseline="none", trials=9, fail="exit!=0", step_time="ms")
CONTROL = CELLS[2]
# A shell in its own session with a child of its own: both belong to the command.
TREE = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print(1, flush=True); time.sleep(60)"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def rows(**times: list[float]) -> list[Trial]:
    names = {"base": "none", "cell": "launch_blocking"}
    return [
        Trial(cell=names[of], trial=at, verdict="pass", step_time=value)
        for of, values in times.items()
        for at, value in enumerate(values)
    ]


def control(*pairs: tuple[float, float]) -> list[Trial]:
    return [
        Trial(cell=CONTROL.name, trial=at, verdict="pass", step_time=value, paused=paused)
        for at, (paused, value) in enumerate(pairs)
    ]


def test_a_control_is_the_baseline_and_names_the_cell_that_it_is_as_slow_as():
    assert [(one.name, one.slow_as, one.env) for one in CELLS][2] == (
        "slow-launch_blocking",
        "launch_blocking",
        {},
    )


@pytest.mark.parametrize(
    "given, wanted",
    [
        ([], None),
        (rows(base=[10.0]), None),
        (rows(base=[10, 10], cell=[11.4, 11.4]), None),  # not slower by more than 1.15
        (rows(base=[10, 10, 500], cell=[15, 15, 1]), 1.5),
        (rows(base=[1.0], cell=[1e9]), MOST),
        # It reached less than it should: a program that waits for its GPU anyway is paused longer.
        ([*rows(base=[10], cell=[15]), *control((1.5, 12.0))], 1.5 * 15 / 12),
        ([*rows(base=[10], cell=[15]), *control((1.5, 30.0))], 1.0),
        # The last three, each by what it was paused itself.
        ([*rows(base=[10], cell=[15]), *control((9, 9), (1.5, 10), (2.25, 15), (2.5, 15))], 2.25),
    ],
)
def test_how_much_a_control_is_paused_follows_the_trials_so_far(given, wanted):
    assert pause_for(CONFIG, CONTROL, given) == (None if wanted is None else pytest.approx(wanted))


def test_all_processes_of_the_command_are_stopped_in_turns_and_run_freely_afterwards():
    child = subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None and child.stdout.readline() == b"1\n"
    pids = family(child.pid)
    try:
        assert len(pids) == 2
        seen: dict[int, set[bool]] = {pid: set() for pid in pids}
        # How long each state lasts is the scheduler's: a busy machine has shown half of what was asked.
        with Pauses(child.pid, 4.0):
            while not all(len(states) == 2 for states in seen.values()):
                for pid, states in seen.items():
                    states.add(state(pid) == "T")
                time.sleep(0.001)
        assert "T" not in [state(pid) for pid in pids]
    finally:
        for pid in pids:
            subprocess.run(["kill", "-9", str(pid)], check=False)
        child.wait()
