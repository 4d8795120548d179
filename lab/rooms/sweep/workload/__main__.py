"""`python -m lab.rooms.sweep.workload`."""

from lab.rooms.sweep.workload.main import main

main()
