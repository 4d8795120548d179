"""plan"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.core.plan import Plan, Site
    from lab.core.step import Step
    from lab.rooms.kernels.replay.args import ReplayPlan


STEP = "replay"


def replay_run(plan: ReplayPlan, site: Site, *, mode: str, repeats: int, pace: str) -> Plan:
    """One step; the workload reads nothing but the plan that lies in the run folder."""
    import msgspec

    from lab.core.plan import Plan
    from lab.rooms.kernels.replay.files import PLAN_FILE

    config = {
        "what": "replay",
        "mode": mode,
        "repeats": repeats,
        "pace": pace,
        "source": plan.origin.run or plan.origin.trace,
    }
    return Plan(
        steps=(replay_step(site, mode=mode, repeats=repeats, pace=pace),),
        config=config,
        inputs={PLAN_FILE: msgspec.json.encode(plan).decode()},
        notes=(*plan.notes, *_notes(plan, site)),
    )


def replay_step(site: Site, *, mode: str, repeats: int, pace: str) -> Step:
    from lab.core.step import Step
    from lab.rooms.kernels.replay.files import PLAN_FILE, RAW_FILE

    return Step(
        name=STEP,
        folder=STEP,
        num_gpus=1 if site.gpus else 0,
        expects=(RAW_FILE,),
        labels={"mode": mode},
        argv=(
            "python",
            "-m",
            "lab.rooms.kernels.workload.replay",
            "--plan",
            PLAN_FILE,
            "--out",
            STEP,
            "--mode",
            mode,
            "--repeats",
            str(repeats),
            "--pace",
            pace,
        ),
    )


def _notes(plan: ReplayPlan, site: Site) -> list[str]:
    if site.gpus or not plan.origin.has_kernels:
        return []
    return ["no GPU here: the replay rebuilds arguments and calls the ops on the CPU; it proves no kernel"]
