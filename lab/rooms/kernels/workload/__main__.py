"""`python -m lab.rooms.kernels.workload`."""

from lab.rooms.kernels.workload.main import main

main()
