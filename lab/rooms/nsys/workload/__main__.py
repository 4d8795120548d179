"""`python -m lab.rooms.nsys.workload`."""

from lab.rooms.nsys.workload.main import main

main()
