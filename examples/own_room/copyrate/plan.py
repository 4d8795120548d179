"""From the options to the steps. Nothing runs here: --dry-run prints exactly these steps."""

from lab.core.plan import Plan
from lab.core.step import Step


def plan(mib):
    argv = ("python", "-m", "lab.rooms.copyrate.workload", str(mib))
    step = Step(name="copy", argv=argv, folder="copy", expects=("copy/rate.json",))
    return Plan(steps=(step,), config={"mib": mib})
