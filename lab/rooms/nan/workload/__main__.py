"""`python -m lab.rooms.nan.workload`."""

from lab.rooms.nan.workload.main import main

main()
