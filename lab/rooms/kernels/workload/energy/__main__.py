"""`python -m lab.rooms.kernels.workload.energy`."""

from lab.rooms.kernels.workload.energy.main import main

main()
