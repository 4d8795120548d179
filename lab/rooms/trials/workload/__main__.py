"""`python -m lab.rooms.trials.workload`: one trial."""

from lab.rooms.trials.workload.main import main

if __name__ == "__main__":
    raise SystemExit(main())
