"""`python -m lab.rooms.kernels.workload.replay`."""

from lab.rooms.kernels.workload.replay.main import main

main()
