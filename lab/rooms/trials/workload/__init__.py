"""What runs beside the GPU: a trial, a replay, a GPU's checks. Each name is for `python -m`."""

REPLAY = "lab.rooms.trials.workload.replay.main"
