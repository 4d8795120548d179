"""What the hook in a program calls once torch is imported: record, as the environment says."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

SETTINGS = "LAB_REPLAY"  # OUT|STEPS|REPEATS|LEVEL|LEAVE
START = "lab.rooms.trials.workload.replay.hook:start_from_env"


def start_from_env() -> None:
    from lab.rooms.trials.workload.replay.recorder import Recorder

    out, steps, repeats, level, leave = os.environ[SETTINGS].rsplit("|", 4)
    recorder = Recorder(Path(out), steps=int(steps), repeats=int(repeats), level=level, leave=leave == "1")
    recorder.start()
    # A program that ends early leaves a record that says so.
    atexit.register(lambda: recorder.stop(ended=True))
